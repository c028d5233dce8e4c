"""The membership of a broker in the cluster: a registration that exists while its lease is kept alive.

- The right to acknowledge ends by this machine's monotonic clock, a margin before the store can end the lease. So a
  broker that was suspended or disconnected knows it before another broker can own its partitions.
- The right begins only when the view shows the registration. Everything that the leader unassigned before lies before
  that revision, and the leader unassigns nothing from a registered broker.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from msgspec.structs import replace

from sulina.broker.cluster.view import ClusterView, Versioned
from sulina.broker.events import EventStream
from sulina.broker.options import ClusterOptions
from sulina.core.cluster import keys
from sulina.core.cluster.entries import LoadReport, Registration
from sulina.core.formats import METADATA
from sulina.errors import InvalidSettings, LeaseLost, NotServing
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.ports import NO_REVISION, Clock, Compare, Entry, Lease, MetadataStore, Put
from sulina.types import checked_broker
from sulina.waiting import wait_or_timeout

MARGIN_SECONDS_MIN = 0.2
MARGIN_SHARE = 0.1
KEEP_ALIVES_PER_LEASE = 3
RETRY_SECONDS_MAX = 1.0
CONFLICTS_MAX = 10  # attempts to write the registration while others write it

_logger = structlog.get_logger("sulina.cluster")


def margin_seconds(ttl_seconds: float) -> float:
    """Return how long before the end of a lease its holder stops: clocks run at different speeds, calls take time."""
    return max(MARGIN_SECONDS_MIN, ttl_seconds * MARGIN_SHARE)


async def nothing_to_verify() -> None:
    """Accept the metadata store as it is."""


class Membership:
    """`register`, then `run` while the broker runs, then `unregister`."""

    def __init__(
        self,
        metadata: MetadataStore,
        registration: Registration,
        view: ClusterView,
        *,
        load: Callable[[], LoadReport],
        events: EventStream,
        clock: Clock,
        options: ClusterOptions,
        verify: Callable[[], Awaitable[None]] = nothing_to_verify,
        changed: Callable[[], None] = lambda: None,
        failpoints: FailpointHook = no_failpoints,
    ) -> None:
        self._metadata = metadata
        self._registration = registration
        self._view = view
        self._verify = verify
        self._changed = changed
        self._key = keys.register(checked_broker(registration.broker_id))
        self._load = load
        self._events = events
        self._clock = clock
        self._options = options
        self._reach = failpoints
        self._lease: Lease | None = None
        self.valid_until = -math.inf  # by the monotonic clock
        self._is_seen = False
        self._is_changing = False  # this broker is writing its registration, so a new revision is expected
        self._wake = asyncio.Event()
        self.ttl = options.lease_seconds  # in seconds, as the store granted it
        self.revision = NO_REVISION  # of the registration; NO_REVISION without a lease
        self.is_replaced = False  # a newer process has this broker id: this one never serves again

    @property
    def broker_id(self) -> str:
        """The id of this broker."""
        return self._registration.broker_id

    @property
    def store_id(self) -> str:
        """The id of the data directory."""
        return self._registration.store_id

    @property
    def lease_id(self) -> int | None:
        """The id of the lease, for keys that are deleted with it; None: there is no lease."""
        return self._lease.lease_id if self._lease else None

    @property
    def lease(self) -> Lease | None:
        """The lease of the registration, if there is one."""
        return self._lease

    def may_ack(self) -> bool:
        """Return whether this broker still owns what it was assigned, by the clock; to be called before each ack."""
        return self._is_seen and self._clock.monotonic() < self.valid_until

    def announce(self, *, url: str | None, peer: str | None) -> None:
        """Register with these addresses from now on; None: with the one that is known."""
        known = self._registration
        self._registration = replace(known, url=url or known.url, peer=peer or known.peer)

    async def register(self) -> None:
        """Register this broker with a new lease.

        Raises:
            InvalidSettings: another broker has the same id.
            MetadataWentBack: the store has lost something that this broker wrote to it.
            MetadataFailed: the store cannot be reached.
            NotServing: others keep changing the registration.
        """
        await self._verify()
        lease = await self._metadata.lease(self._options.lease_seconds)
        sent = self._clock.monotonic()
        ttl = await lease.keep_alive()  # the store may have made it longer
        for _ in range(CONFLICTS_MAX):
            entry = await self._metadata.get(self._key)
            self._check_name(entry)
            done = await self._metadata.txn(
                compares=[Compare(self._key, entry.revision if entry else NO_REVISION)],
                puts=[
                    Put(self._key, METADATA.encode(self._registration), lease.lease_id),
                    Put(keys.load(self.broker_id), METADATA.encode(self._load())),
                ],
            )
            if done.is_done:
                self._lease, self.ttl, self.revision = lease, ttl, done.revision
                self.valid_until = sent + ttl - margin_seconds(ttl)
                self._reach(Failpoint.MEMBER_REGISTERED)
                self.look()  # the view may have been faster than the answer
                return
        raise NotServing(reason=f"others keep changing the registration of broker {self.broker_id}")

    async def run(self) -> None:
        """Keep the lease alive, and register again when it is lost. Ends when a newer process has this broker id."""
        while not self.is_replaced:
            if self._lease is None:
                pause_seconds = await self._register_again()
            else:
                pause_seconds = await self.keep_alive(self._lease)
            if pause_seconds > 0 and not self.is_replaced:
                self._wake.clear()
                await wait_or_timeout(self._wake, pause_seconds)

    def look(self) -> None:
        """Compare the registration with the view; to be called after every change of the view."""
        if self._is_changing or self.revision == NO_REVISION or self._view.revision < self.revision:
            return
        held = self._view.registrations.get(self.broker_id)
        if held is not None and held.revision == self.revision:
            self._valid(self.valid_until, is_seen=True)
        elif held is not None and held.value.started_ms != self._registration.started_ms:
            self._replaced(held)
        else:
            self.lost("the registration was deleted")

    def lost(self, reason: str) -> None:
        """Give the lease up, because it has ended or soon will; `run` registers again."""
        if self._lease is None:
            return
        self._drop_lease()
        self._events.emit("lease_lost", broker_id=self.broker_id, reason=reason)
        self._wake.set()

    async def announce_leaving(self) -> None:
        """Announce that this broker will stop: it is assigned nothing more, and keeps what it has."""
        lease, revision = self._lease, self.revision
        if lease is None or self._is_changing:
            return
        self._registration = replace(self._registration, is_leaving=True)
        put = Put(self._key, METADATA.encode(self._registration), lease.lease_id)
        self._is_changing = True
        try:
            done = await self._metadata.txn(compares=[Compare(self._key, revision)], puts=[put])
            if done.is_done and self._lease is lease:
                self.revision = done.revision
        finally:
            self._is_changing = False
            self.look()

    async def unregister(self, leader_revision: int | None) -> None:
        """Delete the registration, and the leadership if this broker has it; without the store, the lease expires."""
        lease, revision = self._lease, self.revision
        self._drop_lease()
        if lease is None:
            return
        mine, gone = Compare(self._key, revision), [self._key, keys.load(self.broker_id)]
        is_done = False
        if leader_revision is not None:
            compares = [mine, Compare(keys.LEADER, leader_revision)]
            is_done = (await self._metadata.txn(compares=compares, deletes=[*gone, keys.LEADER])).is_done
        if not is_done:
            await self._metadata.txn(compares=[mine], deletes=gone)
        self._reach(Failpoint.MEMBER_LEAVING)
        await lease.revoke()

    # Inside

    async def keep_alive(self, lease: Lease) -> float:
        """Keep a lease alive once; return how many seconds to wait before the next time."""
        sent = self._clock.monotonic()
        interval = self.ttl / KEEP_ALIVES_PER_LEASE
        try:
            async with asyncio.timeout(interval):
                ttl = await lease.keep_alive()
        except LeaseLost:
            self.lost("the lease was not kept alive in time")
            return 0.0
        except Exception as error:  # noqa: BLE001
            # The store cannot be reached: try again; the clock decides what this broker may do meanwhile.
            _logger.warning("keep_alive_failed", broker_id=self.broker_id, error=str(error) or "no answer in time")
            return self._retry_seconds
        if self._lease is lease:
            self.ttl = ttl
            self._valid(sent + ttl - margin_seconds(ttl), is_seen=self._is_seen)
        return max(0.0, sent + ttl / KEEP_ALIVES_PER_LEASE - self._clock.monotonic())

    async def _register_again(self) -> float:
        try:
            async with asyncio.timeout(self._options.lease_seconds):
                await self.register()
        except Exception as error:  # noqa: BLE001
            _logger.warning("broker_not_registered", broker_id=self.broker_id, error=str(error) or "no answer in time")
            return self._retry_seconds
        self._events.emit("lease_renewed", broker_id=self.broker_id)
        return self.ttl / KEEP_ALIVES_PER_LEASE

    def _valid(self, until: float, *, is_seen: bool) -> None:
        before = self.may_ack()
        self.valid_until, self._is_seen = until, is_seen
        if self.may_ack() and not before:
            self._changed()

    @property
    def _retry_seconds(self) -> float:
        return min(RETRY_SECONDS_MAX, self._options.lease_seconds / 10)

    def _check_name(self, entry: Entry | None) -> None:
        """Refuse the id of another broker. A former process of this one is dead: the directory is not locked."""
        if entry is None:
            return
        try:
            other = METADATA.decode(entry.value, Registration, entry.key)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidSettings(
                f"broker id {self.broker_id} has a registration that cannot be read: {self._key}"
            ) from None
        if other.store_id != self.store_id:
            raise InvalidSettings(
                f"broker id {self.broker_id} is in use by {other.url}, which has another data directory: choose "
                f"another id, or stop that broker and wait {self._options.lease_seconds:g} seconds"
            )

    def _replaced(self, held: Versioned[Registration]) -> None:
        self._drop_lease()
        self.is_replaced = True
        self._events.emit("broker_replaced", broker_id=self.broker_id, url=held.value.url)
        self._wake.set()

    def _drop_lease(self) -> None:
        self._lease, self.revision = None, NO_REVISION
        self.valid_until, self._is_seen = -math.inf, False

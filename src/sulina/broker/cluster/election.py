"""Who leads: whoever holds `/cluster/leader`, which goes with its holder's lease.

A leader acts only on a view that shows its election. Everything that leaders before it wrote lies before that revision,
and nothing that they still try can succeed, since every one of their transactions compares the key. So there is never
more than one leader whose writes count.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from sulina.broker.cluster.membership import Membership
from sulina.broker.cluster.view import ClusterView
from sulina.core.cluster import keys
from sulina.core.cluster.entries import Leader
from sulina.errors import LeaseLost
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.ports import NO_REVISION, Compare, MetadataStore, Put

RETRY_SECONDS = 0.2
ANSWER_SECONDS = 5.0  # then it is tried again

_logger = structlog.get_logger("sulina.cluster")


class Election:
    """`run` campaigns whenever nobody leads."""

    def __init__(
        self,
        metadata: MetadataStore,
        membership: Membership,
        view: ClusterView,
        *,
        won: Callable[[], None],
        failpoints: FailpointHook = no_failpoints,
    ) -> None:
        self._metadata = metadata
        self._membership = membership
        self._view = view
        self._told = won  # called when we lead and the view shows it
        self._reach = failpoints
        self._won: tuple[int, int] | None = None  # the revision of our election, and the lease it goes with
        self._wake = asyncio.Event()

    @property
    def revision(self) -> int | None:
        """The revision of our election while we lead, else None: what every transaction of a leader compares."""
        if self._won is None or not self._membership.may_ack():
            return None
        revision, lease_id = self._won
        leader = self._view.leader
        is_ours = leader is not None and leader.revision == revision and self._membership.lease_id == lease_id
        return revision if is_ours else None

    def look(self) -> None:
        """Something about members or the leader has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Campaign, for ever."""
        while True:
            self._wake.clear()
            if not self._is_free():
                await self._wake.wait()
                continue
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._campaign()
            except LeaseLost:
                self._membership.lost("the store says so")
            except Exception as error:  # noqa: BLE001
                _logger.warning("campaign_failed", error=str(error) or "no answer in time")
                await asyncio.sleep(RETRY_SECONDS)

    def _is_free(self) -> bool:
        """Nobody leads, or our former self does, by a lease that nobody keeps alive any more."""
        if not self._membership.may_ack():
            return False
        leader = self._view.leader
        if leader is None:
            return True
        return leader.value.broker_id == self._membership.broker_id and self.revision is None

    async def _campaign(self) -> None:
        lease_id = self._membership.lease_id
        if lease_id is None:
            return
        leader = self._view.leader
        put = Put(keys.LEADER, msgspec.json.encode(Leader(broker_id=self._membership.broker_id)), lease_id)
        done = await self._metadata.txn(
            compares=[Compare(keys.LEADER, leader.revision if leader else NO_REVISION)], puts=[put]
        )
        if not done.is_done:
            await self._view.wait_for(lambda view: view.leader is not leader, RETRY_SECONDS)
            return
        self._won = (done.revision, lease_id)
        self._reach(Failpoint.LEADER_ELECTED)
        await self._view.wait_for(lambda view: view.revision >= done.revision, ANSWER_SECONDS)
        self._told()  # the view may have shown it before we knew that it was us

"""The election of the leader: the broker that holds `/cluster/leader`, which is deleted with the lease of its holder.

A leader acts only on a view that shows its election. Everything that former leaders wrote lies before that revision,
and nothing that they still try can succeed, because each of their transactions compares the key. So only the writes of
one leader count.
"""

import asyncio
from collections.abc import Callable

import structlog

from sulina.broker.cluster.membership import Membership
from sulina.broker.cluster.view import ClusterView
from sulina.core.cluster import keys
from sulina.core.cluster.entries import Leader
from sulina.core.formats import METADATA
from sulina.errors import LeaseLost
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.ports import NO_REVISION, Compare, MetadataStore, Put

RETRY_SECONDS = 0.2
ANSWER_SECONDS = 5.0  # how long to wait for the store before trying again

_logger = structlog.get_logger("sulina.cluster")


class Election:
    """`run` tries to become the leader whenever the cluster has no leader."""

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
        self._on_won = won  # called when this broker leads and the view shows it
        self._reach = failpoints
        self._won: tuple[int, int] | None = None  # the revision of our election, and the lease it goes with
        self._wake = asyncio.Event()

    @property
    def revision(self) -> int | None:
        """The revision of our election, which the transactions of a leader compare; None: this broker does not lead."""
        if self._won is None or not self._membership.may_ack():
            return None
        revision, lease_id = self._won
        leader = self._view.leader
        is_ours = leader is not None and leader.revision == revision and self._membership.lease_id == lease_id
        return revision if is_ours else None

    def look(self) -> None:
        """Check again whether there is a leader."""
        self._wake.set()

    async def run(self) -> None:
        """Try to become the leader whenever the cluster has no leader."""
        while True:
            self._wake.clear()
            if not self._is_free():
                await self._wake.wait()
                continue
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._campaign()
            except LeaseLost:
                self._membership.lost("the metadata store has ended it")
            except Exception as error:  # noqa: BLE001
                _logger.warning("campaign_failed", error=str(error) or "no answer in time")
                await asyncio.sleep(RETRY_SECONDS)

    def _is_free(self) -> bool:
        """Return whether there is no leader, or only a former process of this broker, whose lease is not kept alive."""
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
        put = Put(keys.LEADER, METADATA.encode(Leader(broker_id=self._membership.broker_id)), lease_id)
        done = await self._metadata.txn(
            compares=[Compare(keys.LEADER, leader.revision if leader else NO_REVISION)], puts=[put]
        )
        if not done.is_done:
            await self._view.wait_for(lambda view: view.leader is not leader, RETRY_SECONDS)
            return
        self._won = (done.revision, lease_id)
        self._reach(Failpoint.LEADER_ELECTED)
        await self._view.wait_for(lambda view: view.revision >= done.revision, ANSWER_SECONDS)
        self._on_won()  # the view may have shown it before the answer came

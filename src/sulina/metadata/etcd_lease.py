"""Leases of etcd.

A lease is renewed by the leader alone, out of its memory. A leader that has been overtaken without knowing it (it was
paused, or cut off) would still renew, or would not know a lease that its successor granted. So after each answer the
same member is asked to read, which needs a majority: if that works, and the term is still that of the answer, then the
member that renewed the lease was the leader. Newer versions of etcd ensure this themselves.
"""

import math
import secrets
from collections.abc import Awaitable, Callable

from sulina.errors import LeaseLost
from sulina.metadata.etcd_calls import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, RANGE, EtcdRefused, Unanswered
from sulina.metadata.etcd_channel import EtcdEndpoint, EtcdEndpoints
from sulina.metadata.etcd_proto import etcd_pb2 as pb

TRIES_PER_TTL = 3  # attempts to renew a lease before it may have ended


async def grant(endpoints: EtcdEndpoints, ttl_seconds: float, *, deadline: float) -> tuple[int, float]:
    """Grant a lease. Return its id, and the seconds that etcd gives it, at least those requested.

    The id is chosen here, so that a grant whose answer was lost is not made twice.

    Raises:
        EtcdRefused: etcd did nothing.
        MetadataFailed: there was no answer in time.
    """
    lease_id = secrets.randbits(62) + 1
    request = pb.LeaseGrantRequest(ttl_seconds=math.ceil(ttl_seconds), id=lease_id)
    try:
        granted = await endpoints.call(LEASE_GRANT, request, deadline=deadline)
    except EtcdRefused as refused:
        if "lease already exists" not in refused.details:
            raise
        return lease_id, float(request.ttl_seconds)
    return lease_id, float(granted.ttl_seconds)


async def renew(endpoints: EtcdEndpoints, lease_id: int, ttl_seconds: float, probe: bytes, *, deadline: float) -> float:
    """Renew a lease. Return how many seconds it has now. `probe` is a key that we may read.

    Each attempt renews it, so for a caller the time counts from its call on.

    Raises:
        LeaseLost: the lease has ended.
        EtcdRefused: etcd did nothing.
        MetadataFailed: there was no answer in time.
    """
    try_seconds_max = ttl_seconds / TRIES_PER_TTL

    async def try_once(endpoint: EtcdEndpoint, seconds: float) -> float:
        seconds = min(seconds, try_seconds_max)
        answer = await endpoint.exchange(LEASE_KEEP_ALIVE, pb.LeaseKeepAliveRequest(id=lease_id), seconds)
        read = await endpoint.call(RANGE, pb.RangeRequest(key=probe, count_only=True), seconds)
        if read.header.raft_term != answer.header.raft_term:
            raise Unanswered("the leader changed while the lease was being renewed")
        if answer.ttl_seconds <= 0:
            raise LeaseLost(lease_id=lease_id)
        return float(answer.ttl_seconds)

    return await endpoints.repeat(try_once, deadline=deadline)


async def revoke(endpoints: EtcdEndpoints, lease_id: int, *, deadline: float, even_if_went_back: bool = False) -> None:
    """End a lease. No error if it has ended.

    Raises:
        EtcdRefused: etcd did nothing.
        MetadataFailed: there was no answer in time.
        MetadataWentBack: the store shows an older state than before.
    """
    request = pb.LeaseRevokeRequest(id=lease_id)
    try:
        await endpoints.call(LEASE_REVOKE, request, deadline=deadline, even_if_went_back=even_if_went_back)
    except EtcdRefused as refused:
        if "lease not found" not in refused.details:
            raise


class EtcdLease:
    """A `ports.Lease`."""

    __slots__ = ("_keep_alive", "_lease_id", "_revoke", "_ttl_seconds")

    def __init__(
        self,
        lease_id: int,
        ttl_seconds: float,
        *,
        keep_alive: Callable[[int, float], Awaitable[float]],
        revoke: Callable[[int], Awaitable[None]],
    ) -> None:
        self._lease_id = lease_id
        self._ttl_seconds = ttl_seconds
        self._keep_alive = keep_alive
        self._revoke = revoke

    @property
    def lease_id(self) -> int:
        return self._lease_id

    async def keep_alive(self) -> float:
        """Renew the lease.

        Raises:
            LeaseLost: it has ended.
            MetadataFailed: it may have ended, or the time limit of the store has passed.
        """
        return await self._keep_alive(self._lease_id, self._ttl_seconds)

    async def revoke(self) -> None:
        await self._revoke(self._lease_id)

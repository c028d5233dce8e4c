"""The space of etcd: its history is compacted, and a full etcd is made to accept writes again.

Once the file of a member has reached its quota, etcd raises an alarm: reads go on, leases are kept alive, nothing is
written until the alarm is cleared. Compaction frees pages inside the file, which later writes use, so a history that
is compacted in time never fills it. If the alarm is on all the same, the file has to become shorter first:

- Defragmentation stops a member while it copies the pages in use. So it is done only while the alarm is on, when
  nothing can be written anyway; one member after the other, the leader last; and only if there is little to copy.
- An alarm is cleared only for a member whose file has become much shorter. If it fills up again, etcd raises it again.
"""

import logging
from collections.abc import Sequence

from sulina.errors import InvalidInput
from sulina.metadata.etcd_calls import ALARM, COMPACT, DEFRAGMENT, STATUS, EtcdRefused, Unanswered
from sulina.metadata.etcd_channel import EtcdEndpoint, EtcdEndpoints
from sulina.metadata.etcd_proto import etcd_pb2 as pb
from sulina.metadata.etcd_settings import EtcdStatus
from sulina.metadata.quiet_grpc import grpc

COPIED_BYTES_MAX = 128 << 20  # a member with more bytes in use is not defragmented: this is about a second's work
DEFRAGMENT_SECONDS = 30.0
WORTH_SHARE = 0.8  # of its former length: a file that stays longer would soon be full again

_logger = logging.getLogger("sulina.metadata")


async def compact(endpoints: EtcdEndpoints, revision: int, *, is_waiting: bool, deadline: float) -> None:
    """Remove the history up to and including `revision`; with `is_waiting` the space is free on return.

    Raises:
        InvalidInput: the store is not at `revision` yet.
        EtcdRefused: etcd did nothing.
        MetadataFailed: there was no answer in time.
    """
    request = pb.CompactionRequest(revision=revision, physical=is_waiting)
    try:
        await endpoints.call(COMPACT, request, deadline=deadline)
    except EtcdRefused as refused:
        if refused.code != grpc.StatusCode.OUT_OF_RANGE:
            raise
        if "has been compacted" not in refused.details:
            raise InvalidInput(f"the history cannot be removed up to revision {revision}: {refused.details}") from None


async def status_of(endpoint: EtcdEndpoint, seconds: float) -> EtcdStatus:
    """Return the status of a member.

    Raises:
        EtcdRefused: the user may not read it.
        Unanswered: the member does not answer.
    """
    answer = await endpoint.call(STATUS, pb.StatusRequest(), seconds)
    return EtcdStatus(
        endpoint=endpoint.address,
        version=answer.version,
        member_id=answer.header.member_id,
        leader_id=answer.leader,
        revision=answer.header.revision,
        db_bytes=answer.db_bytes,
        used_bytes=answer.db_in_use_bytes,
        quota_bytes=answer.db_quota_bytes,
        raft_term=answer.header.raft_term,
        errors=tuple(answer.errors),
    )


async def make_room(endpoints: EtcdEndpoints) -> None:
    """Defragment full members, and clear their alarms. Steps that are not safe are logged and left to an operator.

    Raises:
        EtcdRefused: the user may not do it.
        MetadataFailed: there was no answer in time.
    """
    alarms = await endpoints.call(ALARM, pb.AlarmRequest(action=pb.AlarmRequest.GET), deadline=endpoints.deadline())
    full = {alarm.member_id for alarm in alarms.alarms if alarm.alarm == pb.AlarmMember.NOSPACE}
    if not full:
        return
    shorter = set()
    for endpoint, before in await _members(endpoints):
        if before.used_bytes > COPIED_BYTES_MAX:
            _logger.warning("etcd_not_defragmented endpoint=%s used_bytes=%d", endpoint.address, before.used_bytes)
            continue
        try:
            after = await endpoints.on(endpoint, _defragmented, deadline=endpoints.deadline())
        except Unanswered as failure:
            _logger.warning("etcd_not_defragmented endpoint=%s error=%s", endpoint.address, failure)
            continue
        _logger.info("etcd_defragmented endpoint=%s from=%d to=%d", endpoint.address, before.db_bytes, after.db_bytes)
        if after.db_bytes < WORTH_SHARE * before.db_bytes:
            shorter.add(after.member_id)
    for member in sorted(full & shorter):
        request = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, member_id=member, alarm=pb.AlarmMember.NOSPACE)
        await endpoints.call(ALARM, request, deadline=endpoints.deadline())
    if full - shorter:
        _logger.warning("etcd_still_full members=%s", ",".join(f"{member:x}" for member in sorted(full - shorter)))


async def _defragmented(endpoint: EtcdEndpoint, seconds: float) -> EtcdStatus:
    await endpoint.call(DEFRAGMENT, pb.DefragmentRequest(), DEFRAGMENT_SECONDS)
    return await status_of(endpoint, seconds)


async def _members(endpoints: EtcdEndpoints) -> Sequence[tuple[EtcdEndpoint, EtcdStatus]]:
    """Return the members that answer, the leader last."""
    found = []
    for endpoint in endpoints.members:
        try:
            found.append((endpoint, await endpoints.on(endpoint, status_of, deadline=endpoints.deadline())))
        except Unanswered as failure:
            _logger.warning("etcd_not_defragmented endpoint=%s error=%s", endpoint.address, failure)
    return sorted(found, key=lambda each: each[1].is_leader)

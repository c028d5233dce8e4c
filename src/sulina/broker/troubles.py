"""What is not as it should be on a node, in the words of its API. What to do about it is for who reads it to say."""

import errno
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from sulina.core.delivery.members import Member
from sulina.errors import Conflict, LogIncomplete, NotServing, SulinaError
from sulina.types import PartitionName
from sulina.wire.messages import Trouble, TroubleKind

SHOWN_MAX = 20  # of each kind


def trouble_of(partition: PartitionName, error: Exception) -> Trouble:
    """Say why the log of a partition could not be opened, without files of the node and without what to do."""
    kind = error.code if isinstance(error, SulinaError) else TroubleKind.NOT_SERVED
    what = f"its log cannot be opened ({type(error).__name__}); the log of the broker says more"
    if isinstance(error, LogIncomplete):
        what = error.lacks
    elif isinstance(error, NotServing):
        what = error.reason
    elif isinstance(error, Conflict):
        what = str(error)
    return Trouble(kind=kind, what=what, topic=str(partition.topic), partition=partition.partition)


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, says that a disk has no room, or a quota or a limit on file sizes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        error = error.__cause__
    return False


def partition_troubles(
    refused: Mapping[PartitionName, Trouble],
    stopped: Mapping[PartitionName, str],
    not_served: Mapping[PartitionName, str],
    *,
    full: Container[PartitionName] = (),
) -> Iterator[Trouble]:
    """Find partitions that take no records: each once, with what says most. `full` are those of a full disk."""
    for name in sorted({*refused, *stopped, *not_served}):
        if name in refused:
            yield refused[name]
            continue
        kind, what = TroubleKind.NOT_SERVED, not_served.get(name, "")
        if name in stopped:
            kind = TroubleKind.DISK_FULL if name in full else TroubleKind.LOG_STOPPED
            what = stopped[name]
        yield Trouble(kind=kind, what=what, topic=str(name.topic), partition=name.partition)


def late_consumers(topic: str, subscription: str, members: Iterable[Member]) -> Iterator[Trouble]:
    """Find consumers that have let their time to ack pass since they last acked anything."""
    for member in members:
        if member.late_count:
            times = "once" if member.late_count == 1 else f"{member.late_count} times"
            what = f"consumer {member.name} of subscription {subscription} has let its time to ack pass {times}"
            yield Trouble(kind=TroubleKind.CONSUMER_LATE, what=what, topic=topic)


def put_aside_troubles(orphaned: Iterable[str], set_aside: Iterable[str]) -> Iterator[Trouble]:
    """Find directories that wait for somebody to look at them, by their names."""
    for kind, names in ((TroubleKind.DIRECTORY_ORPHANED, orphaned), (TroubleKind.DIRECTORY_SET_ASIDE, set_aside)):
        for name in names:
            yield Trouble(kind=kind, what=name)


def first_of_each_kind(troubles: Sequence[Trouble]) -> list[Trouble]:
    """Return no more of a kind than an answer has room for."""
    seen: Counter[str] = Counter()
    kept = []
    for trouble in troubles:
        seen[trouble.kind] += 1
        if seen[trouble.kind] <= SHOWN_MAX:
            kept.append(trouble)
    return kept

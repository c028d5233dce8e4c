"""Named points at which a test may end a process, so that a crash is tested at each of them.

The points of one act are listed in the order in which they are reached. They are off unless `SULINA_FAILPOINTS` is set
to `POINT[@SUBJECT][:COUNT][=kill|stop]`: the process that reaches the point, about that table or topic, for the
COUNT-th time ends itself as a power failure would (`kill`, the default), or stops for good (`stop`), so that a test
can end it together with the processes around it. Spark replaces the Python workers that end themselves, and its workers
do not know of each other: where `SULINA_FAILPOINT_MARKS` names a folder, all processes count together by files in it.
"""

import os
import signal
from collections.abc import Callable
from enum import StrEnum
from itertools import count

FAILPOINTS = "SULINA_FAILPOINTS"
MARKS = "SULINA_FAILPOINT_MARKS"


class Failpoint(StrEnum):
    """A point at which a test may end the process. Its name says what has just been done, unless it says otherwise."""

    # A log on disk, and its archive
    OPEN_LOCKED = "open.locked"
    OPEN_ASIDE_REMOVED = "open.aside_removed"
    OPEN_LOADED = "open.loaded"
    OPEN_RESTATED = "open.restated"  # the newest commit is durable, also if another process wrote it
    OPEN_ORPHAN_REMOVED = "open.orphan_removed"
    OPEN_TRUNCATED = "open.truncated"
    OPEN_CLAIMED = "open.claimed"  # version 0 exists, or a new epoch

    ROLL_SEALED = "roll.sealed"  # the index of the full segment is complete
    ROLL_CREATED = "roll.created"
    ROLL_RECYCLED = "roll.recycled"  # instead of created: a spare file got the segment's name

    APPEND_PLANNED = "append.planned"
    APPEND_WRITTEN = "append.written"
    APPEND_SYNCED = "append.synced"
    APPEND_DIRECTORY_SYNCED = "append.directory_synced"  # only with a new segment
    APPEND_COMMITTED = "append.committed"
    APPEND_INDEXED = "append.indexed"

    COMMIT_ASIDE_CREATED = "commit.aside_created"
    COMMIT_ASIDE_WRITTEN = "commit.aside_written"
    COMMIT_ASIDE_SYNCED = "commit.aside_synced"
    COMMIT_LINKED = "commit.linked"
    COMMIT_DIRECTORY_SYNCED = "commit.directory_synced"
    COMMIT_ASIDE_REMOVED = "commit.aside_removed"

    ABORT_STARTED = "abort.started"
    ABORT_TRUNCATED = "abort.truncated"
    ABORT_REMOVED = "abort.removed"

    ROTATE_PLANNED = "rotate.planned"
    ROTATE_COMMITTED = "rotate.committed"

    REMOVE_PLANNED = "remove.planned"
    REMOVE_COMMITTED = "remove.committed"
    REMOVE_SPARED = "remove.spared"  # the file was kept for a new segment
    REMOVE_DELETED = "remove.deleted"  # or deleted

    CHECKPOINT_ASIDE_CREATED = "checkpoint.aside_created"
    CHECKPOINT_ASIDE_WRITTEN = "checkpoint.aside_written"
    CHECKPOINT_ASIDE_SYNCED = "checkpoint.aside_synced"
    CHECKPOINT_LINKED = "checkpoint.linked"
    CHECKPOINT_DIRECTORY_SYNCED = "checkpoint.directory_synced"
    CHECKPOINT_ASIDE_REMOVED = "checkpoint.aside_removed"
    CHECKPOINT_VERIFIED = "checkpoint.verified"
    CHECKPOINT_HINT_REMOVED = "checkpoint.hint_removed"
    CHECKPOINT_HINT_WRITTEN = "checkpoint.hint_written"

    CLEANUP_PLANNED = "cleanup.planned"
    CLEANUP_COMMIT_REMOVED = "cleanup.commit_removed"
    CLEANUP_CHECKPOINT_REMOVED = "cleanup.checkpoint_removed"

    ARCHIVE_CLAIMED = "archive.claimed"
    ARCHIVE_OBJECT_PUT = "archive.object_put"
    ARCHIVE_COMMITS_PUT = "archive.commits_put"
    ARCHIVE_STATE_PUT = "archive.state_put"
    ARCHIVE_COMMITTED = "archive.committed"  # a slice is part of the archive
    ARCHIVE_CHECKPOINTED = "archive.checkpointed"
    ARCHIVE_MERGED = "archive.merged"
    ARCHIVE_REMOVED = "archive.removed"
    ARCHIVE_OBJECTS_DELETED = "archive.objects_deleted"

    RESUME_SET_ASIDE = "resume.set_aside"  # a directory that was overtaken, or belongs to another topic
    RESUME_DISCARDED = "resume.discarded"  # a directory whose records are all in the archive
    RESUME_SEEDED = "resume.seeded"  # a new directory is complete, under another name
    RESUME_RENAMED = "resume.renamed"
    RESUME_DURABLE = "resume.durable"

    # A broker as a member of the cluster, and as its leader
    MEMBER_REGISTERED = "member.registered"
    MEMBER_LEAVING = "member.leaving"  # the registration is gone, the lease is not

    LEADER_ELECTED = "leader.elected"
    LEADER_CREATED = "leader.created"  # partitions of a new topic wait for an owner
    LEADER_DEAD_FOUND = "leader.dead_found"
    LEADER_UNASSIGNED = "leader.unassigned"  # some partitions of a dead broker wait for an owner
    LEADER_BEFORE_ASSIGN = "leader.before_assign"
    LEADER_ASSIGNED = "leader.assigned"  # some partitions have an owner again
    LEADER_UNLOADS_REQUESTED = "leader.unloads_requested"  # of a draining broker, or to balance
    LEADER_SWEPT = "leader.swept"  # some keys of a deleted topic are removed

    # A broker as the owner of a partition
    OWNER_ASSIGNED = "owner.assigned"
    OWNER_SERVED = "owner.served"
    OWNER_OPENED = "owner.opened"

    UNLOAD_QUIESCED = "unload.quiesced"
    UNLOAD_PAUSED = "unload.paused"
    UNLOAD_SEALED_ARCHIVE = "unload.sealed_archive"
    UNLOAD_SEALED_STATE = "unload.sealed_state"
    UNLOAD_UNASSIGNED = "unload.unassigned"
    UNLOAD_LOCAL_REMOVED = "unload.local_removed"

    # A micro-batch of Spark
    SOURCE_ENDED = "source.ended"  # the end of the batch is decided; Spark has not stored it
    SOURCE_PLANNED = "source.planned"  # Spark has stored it; no task has begun

    FILES_WRITTEN = "files.written"  # those of one task; the driver does not know them yet
    COMMIT_BEGUN = "commit.begun"  # the driver knows the files of all tasks; the table does not
    COMMIT_DONE = "commit.done"  # the table has them; Spark does not know it
    COMMIT_FOUND = "commit.found"  # instead: the table had them from an earlier attempt

    PUBLISH_DONE = "publish.done"  # the rows of one task are in a partition of the topic
    PUBLISH_ALL_DONE = "publish.all_done"  # those of all tasks; Spark has not stored that the batch is done


FailpointHook = Callable[[Failpoint], None]

_POINTS = list(Failpoint)
LOG_FAILPOINTS = _POINTS[: _POINTS.index(Failpoint.ARCHIVE_CLAIMED)]  # a log that has no archive
ARCHIVE_FAILPOINTS = _POINTS[_POINTS.index(Failpoint.ARCHIVE_CLAIMED) : _POINTS.index(Failpoint.MEMBER_REGISTERED)]
STORAGE_FAILPOINTS = LOG_FAILPOINTS + ARCHIVE_FAILPOINTS
SPARK_FAILPOINTS = _POINTS[_POINTS.index(Failpoint.SOURCE_ENDED) :]

_reached = count(1)  # how often this process has reached the wanted point, where no folder counts it


def no_failpoints(_: Failpoint) -> None:
    """Do nothing at any point."""


def failpoints_from_environment() -> FailpointHook:
    """Return the hook that `SULINA_FAILPOINTS` switches on, or `no_failpoints`."""
    return reach if FAILPOINTS in os.environ else no_failpoints


def reach(point: Failpoint, subject: str = "") -> None:
    """End or stop this process if `SULINA_FAILPOINTS` names this point, and the table or topic by its path."""
    wanted = os.environ.get(FAILPOINTS)
    if wanted is None:
        return
    where, _, action = wanted.partition("=")
    named, _, nth = where.partition(":")
    wanted_point, _, wanted_subject = named.partition("@")
    if point == wanted_point and wanted_subject in ("", subject.rsplit("/", 1)[-1]) and _times() == int(nth or 1):
        os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)


def _times() -> int:
    """Return how often the wanted point was reached, this time included."""
    folder = os.environ.get(MARKS)
    if folder is None:
        return next(_reached)
    for number in count(1):
        try:
            os.close(os.open(os.path.join(folder, str(number)), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return number
    raise AssertionError("count() does not end")

"""Every step of the log that changes the disk or the archive, by name.

A test can be told of each, and end the process there for good: what the next open finds is what a crash at that
point leaves. The steps of one call are listed in the order in which they happen.
"""

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    """What has just been done."""

    OPEN_LOCKED = "open.locked"
    OPEN_ASIDE_REMOVED = "open.aside_removed"
    OPEN_LOADED = "open.loaded"
    OPEN_RESTATED = "open.restated"  # the newest commit is durable, whoever wrote it
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

    RESUME_SET_ASIDE = "resume.set_aside"  # a directory that was overtaken, or is another topic's
    RESUME_DISCARDED = "resume.discarded"  # or that holds nothing of its own
    RESUME_SEEDED = "resume.seeded"  # a new directory is complete, under another name
    RESUME_RENAMED = "resume.renamed"
    RESUME_DURABLE = "resume.durable"


ARCHIVE_STEPS = [step for step in Step if step.startswith(("archive.", "resume."))]
LOG_STEPS = [step for step in Step if step not in ARCHIVE_STEPS]  # of a log that has no archive

Steps = Callable[[Step], None]


def no_steps(_: Step) -> None:
    """Nobody is watching."""

"""Directories of partitions whose topic has vanished from the metadata store without a delete mark.

The store may have been lost, or restored to an older state, and the directory may be the only copy of acknowledged
records. So it is kept under a name with the topic's id, and restored when a topic with that id returns. It is removed
only when a delete mark for that very id is found.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from sulina.errors import InvalidName, LogLocked
from sulina.ports import Files
from sulina.storage.files import remove_tree
from sulina.storage.partition_directory import locked, read_released_note, read_stamp, released_note
from sulina.types import PartitionName

_ORPHAN = ".orphan-"


@dataclass(frozen=True, slots=True)
class Orphan:
    """A directory that waits for its topic to return."""

    partition: PartitionName
    topic_id: str
    path: str


def orphan_path(directory: str, topic_id: str) -> str:
    """Return the path of a partition's directory while its topic does not exist."""
    return f"{directory}{_ORPHAN}{topic_id}"


def set_aside(files: Files, directory: str, topic_id: str) -> str | None:
    """Keep a directory under its topic's id. Return its path, or None if this topic has no directory here.

    Raises:
        LogLocked: another process is writing to the directory.
    """
    if not os.path.isdir(directory) or not _is_of(files, directory, topic_id):
        return None
    path = orphan_path(directory, topic_id)
    with locked(files, directory):
        if os.path.isdir(path):
            raise LogLocked(path=path)  # two directories of one partition of one topic: neither is touched
        files.rename(directory, path)
        files.sync_directory(os.path.dirname(directory))
    return path


def restore(files: Files, directory: str, topic_id: str) -> bool:
    """Restore a topic's directory that was set aside. Return whether there was one.

    A directory of another topic in its place is set aside in turn.
    """
    stamp = read_stamp(files, directory)
    if stamp is not None and stamp.topic_id != topic_id:
        set_aside(files, directory, stamp.topic_id)
    path = orphan_path(directory, topic_id)
    if os.path.isdir(directory) or not os.path.isdir(path):
        return False
    files.rename(path, directory)
    files.sync_directory(os.path.dirname(directory))
    return True


def remove(files: Files, directory: str, topic_id: str) -> None:
    """Delete the directories of a partition whose topic was deleted, never one of another topic."""
    stamp = read_stamp(files, directory)
    if stamp is not None and stamp.topic_id == topic_id:
        remove_tree(directory)
    if os.path.isdir(orphan_path(directory, topic_id)):
        remove_tree(orphan_path(directory, topic_id))
    if (note := read_released_note(files, directory)) is not None and note.topic_id == topic_id:
        files.remove(released_note(directory))


def orphans(files: Files, data: str) -> Iterator[Orphan]:
    """Yield the directories that wait for their topics."""
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(files.list(data)):
            base, mark, topic_id = name.rpartition(_ORPHAN)
            with contextlib.suppress(InvalidName):
                if mark:
                    yield Orphan(PartitionName.from_directory(base), topic_id, os.path.join(data, name))


def _is_of(files: Files, directory: str, topic_id: str) -> bool:
    """Return whether a directory belongs to this topic. One without a stamp belongs to the topic of its name."""
    stamp = read_stamp(files, directory)
    return stamp is None or stamp.topic_id == topic_id

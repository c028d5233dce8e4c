"""Rules for a new owner that finds a directory of the partition on its disk. Nothing here touches the directory.

A directory is stamped with the topic that it belongs to, and with a unique name of its own, its holder. Every claim in
the archive names the holder that continues from there. So a directory is the log's newest if, and only if, the newest
claim names it: then everything in it follows the archive. If the claim names another holder, that one has continued
from the archive, and records that only this directory has never counted, or were discarded.

| directory | newest claim in the archive names | state | next step |
|---|---|---|---|
| none | anything | ABSENT | a new directory continues from the archive; from offset 0 if the archive is empty |
| stamped with another topic | anything | FOREIGN | set aside; then as none |
| stamped with this topic | this directory | NEWEST | it continues |
| stamped with this topic | nothing, there is no claim | NEWEST | it continues: it was stamped, its claim never came |
| stamped with this topic | another | OVERTAKEN | removed if all of it is archived, else set aside; then as none |
| without stamp | nothing, and it is adopted | UNSTAMPED | stamped, then it continues: its node had no archive before |
| without stamp | anything else | FOREIGN | set aside; then as none |

The claim is made after this decision and names the holder that continues; if another claim comes first, the decision is
made again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from sulina.core.cluster.entries import Current, Sealed
from sulina.core.log.archive import ArchiveView
from sulina.core.log.log_state import LogState
from sulina.errors import CorruptLog, LogIncomplete
from sulina.types import Epoch, Offset, Version


class Stamp(Struct, frozen=True, kw_only=True):
    """The topic and the unique name of a directory, stored in it."""

    topic_id: str
    holder: str  # unique name of the directory


class DirectoryState(StrEnum):
    """How a directory relates to the log of a topic."""

    ABSENT = "absent"
    NEWEST = "newest"
    UNSTAMPED = "unstamped"
    OVERTAKEN = "overtaken"
    FOREIGN = "foreign"


CONTINUES = (DirectoryState.NEWEST, DirectoryState.UNSTAMPED)


def directory_state(
    *, exists: bool, stamp: Stamp | None, topic_id: str, claimed_by: str | None, is_adopted: bool = False
) -> DirectoryState:
    """Return the state of a directory by the table above. `claimed_by` is the holder in the newest claim, if any."""
    if not exists:
        return DirectoryState.ABSENT
    if stamp is None:
        return DirectoryState.UNSTAMPED if is_adopted and claimed_by is None else DirectoryState.FOREIGN
    if stamp.topic_id != topic_id:
        return DirectoryState.FOREIGN
    return DirectoryState.NEWEST if claimed_by in (None, stamp.holder) else DirectoryState.OVERTAKEN


ARCHIVE, DIRECTORY = "the archive", "the directory of this broker"  # a log ends in one of them


class How(StrEnum):
    """Where a log was opened from."""

    NEW = "new"  # at offset 0: no record of it exists
    CONTINUED = "continued"  # from its directory
    FROM_ARCHIVE = "from_archive"


@dataclass(frozen=True, slots=True)
class End:
    """The end of a log."""

    next_offset: Offset
    version: Version
    epoch: Epoch = Epoch(-1)  # of the newest owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """An end that was once reported of a log. A log that ends before it has lost records."""

    source: str  # who reported it, for messages
    end: End
    archived: Offset = Offset(0)  # the end of the archive at that time


def check_continues(path: str, local: LogState, archive: ArchiveView, at_archived: Offset | None) -> None:
    """Check that the directory has everything that the archive has, and the same.

    `at_archived` is the end of the directory's own log at the archive's version; None if it no longer has that version.

    Raises:
        CorruptLog: the directory ends before the archive, or differs from it.
    """
    if archive.is_empty:
        return
    if local.version < archive.log_version or local.next_offset < archive.next_offset:
        has = f"it ends at offset {local.next_offset}, version {local.version}"
        reason = f"{has}, but offset {archive.next_offset}, version {archive.log_version} of it was archived"
        raise CorruptLog(path=path, reason=f"{reason}; move the directory away to continue from the archive")
    if at_archived is not None and archive.log_version >= 0 and at_archived != archive.next_offset:
        reason = f"its version {archive.log_version} ends at {at_archived}, the archive's at {archive.next_offset}"
        raise CorruptLog(path=path, reason=reason)


def witnesses(sealed: Sealed | None, current: Current | None, *, is_only_here: bool) -> list[Witness]:
    """Return the ends that the metadata store has heard of for a log.

    `is_only_here`: not all acknowledged records are in the archive, so the log must reach the end that its owner
    reported.
    """
    found = []
    if sealed is not None:
        end = End(Offset(sealed.next_offset), Version(sealed.version), Epoch(sealed.epoch))
        found.append(
            Witness(
                source=f"broker {sealed.broker_id} sealed it at offset {sealed.next_offset}",
                end=end,
                archived=end.next_offset,
            )
        )
    if current is not None:
        offset = current.end_offset if is_only_here else current.archived_offset
        what = "had records" if is_only_here else "had archived it"
        source = f"its owner reported under epoch {current.epoch} that it {what} up to offset {offset}"
        end = End(Offset(offset), Version(-1), Epoch(current.epoch))
        found.append(Witness(source=source, end=end, archived=Offset(current.archived_offset)))
    return found


def check_witnesses(partition: str, where: str, heard: Iterable[Witness], end: End) -> None:
    """Check that a log reaches every end that was reported of it.

    Raises:
        LogIncomplete: it ends earlier, or at an older epoch than the one that reported.
    """
    for witness in heard:
        told = witness.end
        if told.next_offset > end.next_offset or told.version > end.version or told.epoch > end.epoch:
            raise LogIncomplete(
                partition=partition, where=where, start=end.next_offset, end=told.next_offset, source=witness.source
            )


def check_joins(partition: str, heard: Iterable[Witness], start: Offset, end: Offset, archive: ArchiveView) -> None:
    """Check that the archive reaches the start of a directory, which holds [start, end).

    An archive that never had a record need not. A log has no gaps, so discarding the records between the two discards
    those of the directory too, which is then set aside: the error names all of them.

    Raises:
        LogIncomplete: the records between them are missing.
    """
    was_filled = any(witness.archived > 0 for witness in heard)
    if start > archive.next_offset and (was_filled or not archive.is_empty):
        raise LogIncomplete(
            partition=partition,
            where=ARCHIVE,
            start=archive.next_offset,
            end=end,
            source=f"the directory of this broker, which holds [{start}, {end}), goes on from it at offset {start}",
        )

"""Checks of an audit, as pure functions over counts and hashes, and its report.

- A range of offsets is told by its sums: how many records it has, how many different offsets, and checksums that do not
  depend on their order. Of n offsets that lie in a range of n, all different, each exists once: that is a proof.
- A table is behind where the log goes on after its newest row, and may begin later than the log does. Whatever it lacks
  between its first row and its newest is a hole.
- Ranges are half-open; sentences name the first and the last offset.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sulina.core.log.commit import Add, Commit
from sulina.errors import Corrupt

RANGE_OFFSETS = 100_000
RANGES_MAX = 20_000  # in all partitions; with more records, ranges get larger
FINDINGS_MAX = 1000  # in a report, and of the commits of a partition
RUNS_MAX = 20  # findings of one kind for one range

Interval = tuple[int, int]


class Kind(StrEnum):
    """The kinds of defects that an audit finds."""

    DAMAGED = "damaged"  # bytes of the log are not what was written
    MISSING = "missing"  # the log lacks an offset
    REPEATED = "repeated"  # the log has an offset more than once
    VERSIONS = "versions"  # commits do not follow one another
    TABLE_MISSING = "table_missing"
    TABLE_REPEATED = "table_repeated"
    TABLE_CHANGED = "table_changed"
    TABLE_FOREIGN = "table_foreign"  # rows that the log never had
    TABLE_BEHIND = "table_behind"  # a finding only if the table must be complete
    TABLE_UNREADABLE = "table_unreadable"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One defect of a log or a table."""

    kind: Kind
    what: str
    partition: int | None = None
    start: int | None = None  # offsets [start, end); versions where the kind is that
    end: int | None = None
    records: int | None = None  # how many of them are concerned, where that is known


class RangeCount(msgspec.Struct, frozen=True):
    """The number of records that log and table have in a range of offsets."""

    start: int
    end: int
    records: int
    table_records: int


class PartitionAudit(msgspec.Struct, kw_only=True):
    """The outcome for one partition: offsets [start, end), as they were when the audit began."""

    partition: int
    start: int
    end: int
    records: int = 0
    unread: list[Interval] = []  # because of damage, or because retention was quicker
    versions: int = 0  # commits that are kept
    table_records: int | None = None
    begins: int | None = None  # the table's first record, where the log has earlier ones
    behind: int | None = None  # records after the table's newest one
    forgotten: int | None = None  # rows of records that the log no longer has
    ahead: int | None = None  # rows past the end of an archive, which cannot be compared
    ranges: list[RangeCount] | None = None  # for a table that need not have all records


class AuditReport(msgspec.Struct, kw_only=True):
    """The outcome of an audit. The topic holds what it promises if there are no findings."""

    topic: str
    table: str | None
    table_version: int | None
    holds: bool
    partitions: list[PartitionAudit]
    findings: list[Finding]
    findings_left_out: int  # more than a report has room for
    seconds: float


class Coverage(IntEnum):
    """How the other side covers a record: the table one of the log, or the log a row of the table."""

    HELD = 0  # a record of the log before the table's end; a row of the table within the log
    BEHIND = 1  # a record of the log that the table has not reached yet
    FORGOTTEN = 2  # a row of the table whose record the log no longer has
    FOREIGN = 3  # a row of the table whose record the log never had
    BEFORE = 4  # a record of the log before the table's first row


class Sums(NamedTuple):
    """The checksums and counts of a range."""

    records: int = 0
    distinct: int = 0  # offsets
    low: int | None = None
    high: int | None = None
    crossed: int = 0  # all hashes, by exclusive or
    upper: int = 0  # the sum of their upper halves
    lower: int = 0

    def plus(self, other: "Sums") -> "Sums":
        """Return the sums of both; they have no offset in common."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return Sums(
            self.records + other.records,
            self.distinct + other.distinct,
            min(lows, default=None),
            max(highs, default=None),
            self.crossed ^ other.crossed,
            self.upper + other.upper,
            self.lower + other.lower,
        )


NOTHING = Sums()
OUTSIDE = -1  # the number of the range that has all rows of a partition outside the log
Key = tuple[int, int, int]  # partition, number of the range, coverage
ByRange = dict[Key, Sums]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A range with a defect, before its exact offsets are known."""

    partition: int
    start: int
    end: int
    findings: tuple[Finding, ...]
    is_exact: bool = False  # a closer look would not tell more


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules that a table is held to."""

    range_offsets: int = RANGE_OFFSETS
    is_whole: bool = True  # every record, as it was; else some of their offsets, each once
    must_be_complete: bool = False
    must_begin_first: bool = False  # with the first record of the log
    may_be_ahead: bool = False  # the log is an archive, which is behind itself


def range_size(offsets: int, wanted: int = RANGE_OFFSETS) -> int:
    """Return how many offsets a range has, so that the number of ranges stays bounded."""
    return max(wanted, -(-offsets // RANGES_MAX))


def offsets_text(start: int, end: int) -> str:
    """Return `offset 7` or `offsets 7 to 9`."""
    return f"offset {start}" if end - start == 1 else f"offsets {start} to {end - 1}"


def _overlap(unread: Iterable[Interval], start: int, end: int) -> int:
    return sum(max(0, min(end, last) - max(start, first)) for first, last in unread)


def _grid(start: int, end: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges that have a part of [start, end): their number, and that part."""
    if start < end:
        for number in range(start // size, (end - 1) // size + 1):
            yield number, max(start, number * size), min(end, (number + 1) * size)


# Commits


@dataclass(slots=True)
class CommitsSeen:
    """The commits of a partition that an audit has read."""

    versions: int = 0
    findings: list[Finding] = field(default_factory=list)


def check_commits(
    partition: int, commits: Iterable[Commit], *, end: int | None, is_kept: Callable[[int], bool]
) -> CommitsSeen:
    """Check that versions follow one another without a gap, and so do the offsets that they add, up to `end`.

    `is_kept` tells whether a version is still retained: commits may be cleaned up while they are read.
    """
    seen = CommitsSeen()
    version: int | None = None
    offset: int | None = None
    epoch = -1

    def find(what: str, start: int, stop: int) -> None:
        seen.findings.append(Finding(kind=Kind.VERSIONS, what=what, partition=partition, start=start, end=stop))

    try:
        for commit in commits:
            added = [operation for operation in commit.operations if isinstance(operation, Add)]
            if end is not None and added and added[0].offset_start >= end:
                break  # it came after we began
            number = commit.version
            if version is not None and number != version + 1:
                if number <= version:
                    find(f"version {number} comes after {version}", number, number + 1)
                elif is_kept(version + 1):
                    find(f"{_versions_text(version + 1, number)} missing", version + 1, number)
                offset = None  # where it went on is not known
            for add in added:
                if offset is not None and add.offset_start != offset:
                    find(f"version {number} adds offset {add.offset_start}, {offset} is next", number, number + 1)
                offset = add.offset_end
            if offset is not None and commit.next_offset != offset:
                find(f"version {number} says that offset {commit.next_offset} is next, {offset} is", number, number + 1)
            if commit.epoch < epoch:
                find(f"version {number} has epoch {commit.epoch}, after {epoch}", number, number + 1)
            version, offset, epoch = number, commit.next_offset, commit.epoch
            seen.versions += 1
            if len(seen.findings) >= FINDINGS_MAX:
                return seen
    except Corrupt as error:
        what = f"{error}; commits after it were not checked"
        seen.findings.append(Finding(kind=Kind.DAMAGED, what=what, partition=partition))
        return seen
    if version is not None and offset is not None and end is not None and offset < end:
        find(
            f"the newest commit is version {version} and ends at offset {offset}, the log at {end}",
            version,
            version + 1,
        )
    return seen


def _versions_text(start: int, end: int) -> str:
    return f"version {start} is" if end - start == 1 else f"versions {start} to {end - 1} are"


# The log


def check_log(audit: PartitionAudit, found: ByRange, rules: Rules) -> list[Suspect]:
    """Check that every offset of what was read exists once."""
    suspects = []
    for number, start, end in _grid(audit.start, audit.end, rules.range_offsets):
        sums = both(audit.partition, number, found)
        audit.records += sums.records
        expected = end - start - _overlap(audit.unread, start, end)
        lacking, more = expected - sums.distinct, sums.records - sums.distinct
        findings = []
        if lacking > 0:
            findings.append(_of_range(Kind.MISSING, audit.partition, start, end, lacking))
        if more > 0 or lacking < 0:
            findings.append(_of_range(Kind.REPEATED, audit.partition, start, end, max(more, -lacking)))
        if findings:
            suspects.append(Suspect(audit.partition, start, end, tuple(findings), is_exact=not sums.records))
    return suspects


def both(partition: int, number: int, found: ByRange) -> Sums:
    """Return what the log has of a range, whether the table has reached it or not."""
    held = found.get((partition, number, Coverage.HELD), NOTHING)
    for coverage in (Coverage.BEHIND, Coverage.BEFORE):
        held = held.plus(found.get((partition, number, coverage), NOTHING))
    return held


# The table


def frontiers(audits: Iterable[PartitionAudit], table: ByRange) -> dict[int, int]:
    """Return the offset after the table's newest row, by partition; the log's first if it has no rows."""
    found = {audit.partition: audit.start for audit in audits}
    for (partition, _, coverage), sums in table.items():
        if coverage == Coverage.HELD and sums.high is not None:
            found[partition] = max(found[partition], sums.high + 1)
    return found


def beginnings(audits: Iterable[PartitionAudit], table: ByRange, rules: Rules) -> dict[int, int]:
    """Return the offset of the table's first row, by partition; the log's first if it has none or must be complete."""
    found = {audit.partition: audit.start for audit in audits}
    if rules.must_begin_first or not rules.is_whole:
        return found
    lowest: dict[int, int] = {}
    for (partition, _, coverage), sums in table.items():
        if coverage in (Coverage.HELD, Coverage.FORGOTTEN) and sums.low is not None:
            lowest[partition] = min(sums.low, lowest.get(partition, sums.low))
    return {partition: max(start, lowest.get(partition, start)) for partition, start in found.items()}


def check_table(
    audit: PartitionAudit, log: ByRange, table: ByRange, frontier: int, rules: Rules, begins: int | None = None
) -> list[Suspect]:
    """Check that the table has what the log has, from `begins` or the log's first record to the table's newest row."""
    partition = audit.partition
    first = audit.start if begins is None else begins
    audit.begins = first if first > audit.start else None
    suspects: list[Suspect] = []
    forgotten = table.get((partition, OUTSIDE, Coverage.FORGOTTEN), NOTHING)
    audit.forgotten = forgotten.records
    if forgotten.low is not None and forgotten.high is not None:
        suspects += _repeats(partition, forgotten.low, forgotten.high + 1, forgotten)
    audit.table_records = 0
    for number, start, end in _grid(first, frontier, rules.range_offsets):
        held = table.get((partition, number, Coverage.HELD), NOTHING)
        audit.table_records += held.records
        if not rules.is_whole:
            suspects += _repeats(partition, start, end, held)
        elif not _overlap(audit.unread, start, end):
            suspects += _differs(partition, start, end, log.get((partition, number, Coverage.HELD), NOTHING), held)
    if rules.is_whole:
        audit.behind = audit.end - frontier
        if rules.must_be_complete and audit.behind:
            behind = _of_range(Kind.TABLE_BEHIND, partition, frontier, audit.end, audit.behind)
            suspects.append(Suspect(partition, frontier, audit.end, (behind,), is_exact=True))
    else:
        audit.ranges = [
            RangeCount(
                start,
                end,
                both(partition, number, log).records,
                table.get((partition, number, Coverage.HELD), NOTHING).records,
            )
            for number, start, end in _grid(audit.start, audit.end, rules.range_offsets)
        ]
    foreign = table.get((partition, OUTSIDE, Coverage.FOREIGN), NOTHING)
    if rules.may_be_ahead and foreign.low is not None and foreign.low >= audit.end:
        audit.ahead = foreign.records
    else:
        suspects += _foreign(partition, foreign)
    return suspects


def check_unknown(table: ByRange, known: Iterable[int]) -> list[Suspect]:
    """Return findings for rows of partitions that the topic does not have."""
    partitions = set(known)
    found = [(key[0], sums) for key, sums in sorted(table.items()) if key[0] not in partitions]
    return [suspect for partition, sums in found for suspect in _foreign(partition, sums)]


def _foreign(partition: int, sums: Sums) -> list[Suspect]:
    if sums.low is None or sums.high is None:
        return []
    finding = _of_range(Kind.TABLE_FOREIGN, partition, sums.low, sums.high + 1, sums.records)
    return [Suspect(partition, sums.low, sums.high + 1, (finding,), is_exact=True)]


def _repeats(partition: int, start: int, end: int, held: Sums) -> list[Suspect]:
    more = held.records - held.distinct
    if not more:
        return []
    return [Suspect(partition, start, end, (_of_range(Kind.TABLE_REPEATED, partition, start, end, more),))]


def _differs(partition: int, start: int, end: int, log: Sums, held: Sums) -> list[Suspect]:
    if log == held:
        return []
    lacking, more = log.distinct - held.distinct, held.records - held.distinct
    findings = []
    if lacking > 0:
        findings.append(_of_range(Kind.TABLE_MISSING, partition, start, end, lacking))
    if more > 0:
        findings.append(_of_range(Kind.TABLE_REPEATED, partition, start, end, more))
    if lacking < 0:
        findings.append(_of_range(Kind.TABLE_FOREIGN, partition, start, end, -lacking))
    if not findings:
        findings.append(_of_range(Kind.TABLE_CHANGED, partition, start, end, None))
    return [Suspect(partition, start, end, tuple(findings), is_exact=not held.records)]


_SAID = {
    Kind.MISSING: "the log lacks {some}{where}",
    Kind.REPEATED: "the log has {some}{where} more than once",
    Kind.TABLE_MISSING: "the table lacks {some}{where}, and has later ones",
    Kind.TABLE_REPEATED: "the table has {some}{where} more than once",
    Kind.TABLE_CHANGED: "{some}{where} differ between log and table",
    Kind.TABLE_FOREIGN: "the table has {some}{where}, which the log does not have",
    Kind.TABLE_BEHIND: "the table is behind: it lacks {some}{where}",
}


def _of_range(kind: Kind, partition: int, start: int, end: int, records: int | None) -> Finding:
    where = offsets_text(start, end)
    if records is None:
        what = _SAID[kind].format(some="records", where=f" among {where}")
    elif records == end - start:
        what = _SAID[kind].format(some="", where=where)
    else:
        what = _SAID[kind].format(some=f"{records:,} records" if records != 1 else "1 record", where=f" among {where}")
    if end - start == 1:
        what = what.replace(" differ between", " differs between")
    return Finding(kind=kind, what=what, partition=partition, start=start, end=end, records=records)


# A closer look


@dataclass(frozen=True, slots=True)
class OffsetHashes:
    """The offsets of a range, rising, how often each is there, and the least and the largest of its hashes."""

    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]
    least: NDArray[np.int64]
    largest: NDArray[np.int64]

    @classmethod
    def of(cls, found: pa.Table) -> "OffsetHashes":
        """Make them from the columns offset, records, least and largest, in any order."""
        found = found.sort_by("offset")
        names = ("offset", "records", "least", "largest")
        return cls(*(found.column(name).to_numpy().astype(np.int64) for name in names))


def look_closer(
    suspect: Suspect, log: OffsetHashes | None, table: OffsetHashes | None, *, is_whole: bool = True
) -> list[Finding]:
    """Return the exact offsets of what is wrong in a range. `log` and `table` are None where they were not read."""
    found: Mapping[Kind, NDArray[np.int64]] = {}
    if log is not None:
        expected = np.arange(suspect.start, suspect.end, dtype=np.int64)
        found = {
            Kind.MISSING: np.setdiff1d(expected, log.offsets, assume_unique=True),
            Kind.REPEATED: log.offsets[log.counts > 1],
        }
    if table is not None:
        found = {**found, Kind.TABLE_REPEATED: table.offsets[table.counts > 1]}
    if log is not None and table is not None and is_whole:
        _, ours, theirs = np.intersect1d(log.offsets, table.offsets, assume_unique=True, return_indices=True)
        is_same = (log.least[ours] == table.least[theirs]) & (log.least[ours] == table.largest[theirs])
        found = {
            **found,
            Kind.TABLE_MISSING: np.setdiff1d(log.offsets, table.offsets, assume_unique=True),
            Kind.TABLE_FOREIGN: np.setdiff1d(table.offsets, log.offsets, assume_unique=True),
            Kind.TABLE_CHANGED: log.offsets[ours][~is_same],
        }
    return [finding for kind, offsets in found.items() for finding in _runs(kind, suspect.partition, offsets)]


def _runs(kind: Kind, partition: int, offsets: NDArray[np.int64]) -> Iterator[Finding]:
    if not len(offsets):
        return
    runs = np.split(offsets, np.flatnonzero(np.diff(offsets) > 1) + 1)
    if len(runs) > RUNS_MAX:
        rest = np.concatenate(runs[RUNS_MAX - 1 :])
        runs = runs[: RUNS_MAX - 1]
    else:
        rest = offsets[:0]
    for run in [*runs, rest]:
        if len(run):
            yield _of_range(kind, partition, int(run[0]), int(run[-1]) + 1, len(run))


def joined(findings: Iterable[Finding]) -> list[Finding]:
    """Join findings of one kind whose ranges lie end to end and are wrong throughout."""
    found: list[Finding] = []
    for one in findings:
        last = found[-1] if found else None
        if (
            last is not None
            and one.kind in _SAID
            and (last.kind, last.partition, last.end) == (one.kind, one.partition, one.start)
            and all(some.records == _length(some) for some in (last, one))
        ):
            assert last.start is not None
            assert one.end is not None
            found[-1] = _of_range(one.kind, one.partition or 0, last.start, one.end, one.end - last.start)
        else:
            found.append(one)
    return found


def _length(finding: Finding) -> int | None:
    return None if finding.start is None or finding.end is None else finding.end - finding.start

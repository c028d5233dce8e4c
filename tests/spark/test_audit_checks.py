"""What an audit makes of sums, commits and rows: S6, without Spark."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from sulina.core.log.commit import NO_ORIGIN, Add, Commit
from sulina.core.log.segment import segment_name
from sulina.errors import CorruptCommit
from sulina.spark.audit_checks import (
    OUTSIDE,
    RANGES_MAX,
    RUNS_MAX,
    CommitsSeen,
    Coverage,
    Finding,
    Kind,
    OffsetHashes,
    PartitionAudit,
    Rules,
    Sums,
    Suspect,
    beginnings,
    check_commits,
    check_log,
    check_table,
    check_unknown,
    frontiers,
    joined,
    look_closer,
    range_size,
)
from sulina.spark.errors import said
from sulina.types import Epoch, Offset, Version

TEN = Rules(range_offsets=10)


def commit(version: int, start: int, end: int, *, epoch: int = 0, following: int | None = None) -> Commit:
    """One that adds offsets [start, end)."""
    add = Add(
        origin_id=NO_ORIGIN,
        origin_seq=NO_ORIGIN,
        offset_start=Offset(start),
        offset_end=Offset(end),
        segment=segment_name(0),
        position=0,
        size=1,
        timestamp_max=0,
    )
    return Commit(
        version=Version(version),
        timestamp="2026-11-16T00:00:00.000Z",
        txn_id="",
        operations=(add,) if start < end else (),
        checkpoint_hint=False,
        epoch=Epoch(epoch),
        start_offset=Offset(0),
        next_offset=Offset(end if following is None else following),
    )


def checked(commits: Iterable[Commit], end: int | None, oldest: int = 0) -> CommitsSeen:
    return check_commits(3, commits, end=end, is_kept=lambda version: version >= oldest)


def kinds(suspects: Iterable[Suspect]) -> list[tuple[Kind, int | None, int | None, int | None]]:
    found = [finding for suspect in suspects for finding in suspect.findings]
    return [(one.kind, one.start, one.end, one.records) for one in found]


def test_s6_commits_that_follow_one_another_hold_from_the_oldest_that_is_kept_on() -> None:
    commits = [commit(4, 20, 30), commit(5, 30, 30), commit(6, 30, 35, epoch=1), commit(7, 35, 40, epoch=1)]
    seen = checked(commits, 35)
    assert (seen.versions, seen.findings) == (3, []), "the last one came later"
    assert checked([], 0).findings == []


@pytest.mark.parametrize(
    ("commits", "end", "said"),
    [
        ([commit(0, 0, 5), commit(2, 5, 9)], 9, "version 1 is missing"),
        ([commit(0, 0, 5), commit(4, 5, 9)], 9, "versions 1 to 3 are missing"),
        ([commit(1, 0, 5), commit(1, 5, 9)], 9, "version 1 comes after 1"),
        ([commit(0, 0, 5), commit(1, 6, 9)], 9, "version 1 adds offset 6, 5 is next"),
        ([commit(0, 0, 5, following=6), commit(1, 6, 9)], 9, "version 0 says that offset 6 is next, 5 is"),
        ([commit(0, 0, 5, epoch=4), commit(1, 5, 9, epoch=3)], 9, "version 1 has epoch 3, after 4"),
        ([commit(0, 0, 5), commit(1, 5, 8)], 9, "the newest commit is version 1 and ends at offset 8, the log at 9"),
    ],
)
def test_s6_commits_that_do_not_are_told(commits: list[Commit], end: int, said: str) -> None:
    (found,) = checked(commits, end).findings
    assert (found.kind, found.partition, found.what) == (Kind.VERSIONS, 3, said)


def test_s6_commits_that_were_cleaned_up_meanwhile_are_not_missing() -> None:
    commits = [commit(0, 0, 5), commit(9, 20, 25)]
    assert checked(commits, 25, oldest=9).findings == []
    assert [one.what for one in checked(commits, 25, oldest=1).findings] == ["versions 1 to 8 are missing"]


def test_s6_a_damaged_commit_is_told_with_its_name() -> None:
    def read() -> Iterator[Commit]:
        yield commit(0, 0, 5)
        raise CorruptCommit(name="00000000000000000001.json", reason="its checksum does not hold")

    (found,) = checked(read(), 9).findings
    assert found.kind == Kind.DAMAGED
    assert found.what.startswith("00000000000000000001.json is damaged")


def sums(start: int, end: int, *, more: int = 0, crossed: int = 7) -> Sums:
    return Sums(end - start + more, end - start, start, end - 1, crossed, 1, 2)


def test_s6_every_offset_of_the_log_exists_once() -> None:
    audit = PartitionAudit(partition=0, start=5, end=25)
    found = {(0, 0, 0): sums(5, 10), (0, 1, 0): sums(10, 15), (0, 1, 1): sums(15, 20), (0, 2, 1): sums(20, 25)}
    assert check_log(audit, found, TEN) == []
    assert audit.records == 20


def test_s6_offsets_that_the_log_lacks_or_repeats_are_told_apart_even_in_one_range() -> None:
    audit = PartitionAudit(partition=0, start=0, end=30)
    found = {(0, 0, 0): sums(0, 10), (0, 1, 0): Sums(10, 9, 10, 19)}
    suspects = check_log(audit, found, TEN)
    assert kinds(suspects) == [(Kind.MISSING, 10, 20, 1), (Kind.REPEATED, 10, 20, 1), (Kind.MISSING, 20, 30, 10)]
    assert [one.is_exact for one in suspects] == [False, True]
    unread = PartitionAudit(partition=0, start=0, end=30, unread=[(19, 30)])
    assert kinds(check_log(unread, {(0, 0, 0): sums(0, 10), (0, 1, 0): sums(10, 19)}, TEN)) == []


def test_s6_only_a_tail_that_is_missing_counts_as_behind() -> None:
    log = {(0, 0, 0): sums(0, 10), (0, 1, 0): sums(10, 14), (0, 1, 1): sums(14, 20), (0, 2, 1): sums(20, 30)}
    table = {(0, 0, 0): sums(0, 10), (0, 1, 0): sums(10, 14)}
    audit = PartitionAudit(partition=0, start=0, end=30)
    assert frontiers([audit], table) == {0: 14}
    assert check_table(audit, log, table, 14, TEN) == []
    assert (audit.table_records, audit.behind) == (14, 16)
    strict = Rules(range_offsets=10, must_be_complete=True)
    assert kinds(check_table(audit, log, table, 14, strict)) == [(Kind.TABLE_BEHIND, 14, 30, 16)]


def test_s6_a_range_that_is_missing_before_later_ones_is_a_hole() -> None:
    log = {(0, n, 0): sums(n * 10, n * 10 + 10) for n in range(3)}
    table = {(0, 2, 0): sums(20, 30)}
    audit = PartitionAudit(partition=0, start=0, end=30)
    suspects = check_table(audit, log, table, 30, TEN)
    assert all(one.is_exact for one in suspects)
    (found,) = joined(finding for one in suspects for finding in one.findings)
    assert (found.kind, found.start, found.end, found.records) == (Kind.TABLE_MISSING, 0, 20, 20)
    assert found.what == "the table lacks offsets 0 to 19, and has later ones"


def test_s6_a_table_may_begin_later_than_the_log_unless_it_must_not() -> None:
    log = {(0, 0, 4): sums(0, 10), (0, 1, 4): sums(10, 13), (0, 1, 0): sums(13, 20), (0, 2, 0): sums(20, 30)}
    table = {(0, 1, 0): sums(13, 20), (0, 2, 0): sums(20, 30)}
    audit = PartitionAudit(partition=0, start=0, end=30)
    begins = beginnings([audit], table, TEN)
    assert begins == {0: 13}
    assert check_log(audit, log, TEN) == []
    assert check_table(audit, log, table, 30, TEN, begins[0]) == []
    assert (audit.begins, audit.table_records, audit.behind) == (13, 17, 0)
    hole = {(0, 1, 0): sums(13, 20), (0, 2, 0): sums(25, 30)}
    assert kinds(check_table(audit, log, hole, 30, TEN, 13)) == [(Kind.TABLE_MISSING, 20, 30, 5)]
    assert beginnings([audit], table, Rules(range_offsets=10, must_begin_first=True)) == {0: 0}
    assert beginnings([audit], {}, TEN) == {0: 0}
    kept = PartitionAudit(partition=0, start=10, end=30)
    assert beginnings([kept], table | {(0, OUTSIDE, Coverage.FORGOTTEN): sums(5, 10)}, TEN) == {0: 10}


def test_s6_other_bytes_and_other_rows_are_told() -> None:
    audit = PartitionAudit(partition=0, start=10, end=20)
    log = {(0, 1, 0): sums(10, 20)}
    assert kinds(check_table(audit, log, {(0, 1, 0): sums(10, 20, crossed=8)}, 20, TEN)) == [
        (Kind.TABLE_CHANGED, 10, 20, None)
    ]
    table = {(0, 1, 0): sums(10, 20), (0, OUTSIDE, Coverage.FORGOTTEN): sums(0, 10, more=1)}
    assert kinds(check_table(audit, log, table, 20, TEN)) == [(Kind.TABLE_REPEATED, 0, 10, 1)]
    assert audit.forgotten == 11
    table = {(0, 1, 0): sums(10, 20), (0, OUTSIDE, Coverage.FOREIGN): sums(20, 22)}
    assert kinds(check_table(audit, log, table, 20, TEN)) == [(Kind.TABLE_FOREIGN, 20, 22, 2)]
    assert kinds(check_unknown({(4, OUTSIDE, Coverage.FOREIGN): sums(0, 1)}, [0])) == [(Kind.TABLE_FOREIGN, 0, 1, 1)]


def test_s6_a_table_may_be_ahead_of_an_archive() -> None:
    audit = PartitionAudit(partition=0, start=10, end=20)
    table = {(0, 1, 0): sums(10, 20), (0, OUTSIDE, Coverage.FOREIGN): sums(20, 22)}
    rules = Rules(range_offsets=10, may_be_ahead=True)
    assert check_table(audit, {(0, 1, 0): sums(10, 20)}, table, 20, rules) == []
    assert audit.ahead == 2


def test_s6_a_range_that_was_not_read_whole_is_not_compared() -> None:
    audit = PartitionAudit(partition=0, start=0, end=20, unread=[(15, 20)])
    log = {(0, 0, 0): sums(0, 10), (0, 1, 0): sums(10, 15)}
    table = {(0, 0, 0): sums(0, 10), (0, 1, 0): sums(10, 20)}
    assert check_table(audit, log, table, 20, TEN) == []


def rows(*found: tuple[int, int, int, int]) -> OffsetHashes:
    """Offset, how often, least and largest hash."""
    names = ("offset", "records", "least", "largest")
    return OffsetHashes.of(
        pa.table({name: pa.array([row[at] for row in found], pa.int64()) for at, name in enumerate(names)})
    )


def test_s6_a_closer_look_names_the_offsets() -> None:
    suspect = Suspect(1, 0, 8, ())
    log = rows(*((n, 1, n, n) for n in (7, 6, 5, 4, 3, 2, 1, 0)))
    table = rows((0, 1, 0, 0), (1, 2, 1, 1), (2, 1, 9, 9), (3, 2, 3, 9), (7, 1, 7, 7), (9, 1, 9, 9))
    found = {(one.kind, one.start, one.end) for one in look_closer(suspect, log, table)}
    assert found == {
        (Kind.TABLE_REPEATED, 1, 2),
        (Kind.TABLE_REPEATED, 3, 4),
        (Kind.TABLE_CHANGED, 2, 4),
        (Kind.TABLE_MISSING, 4, 7),
        (Kind.TABLE_FOREIGN, 9, 10),
    }
    assert [(one.kind, one.start) for one in look_closer(suspect, rows((0, 2, 0, 0)), None)] == [
        (Kind.MISSING, 1),
        (Kind.REPEATED, 0),
    ]


def test_a_report_stays_small_whatever_is_wrong() -> None:
    every_second = rows(*((n, 2, 0, 0) for n in range(0, 1000, 2)))
    found = look_closer(Suspect(0, 0, 1000, ()), None, every_second)
    assert len(found) == RUNS_MAX
    assert sum(one.records or 0 for one in found) == 500
    assert found[-1].what == "the table has 481 records among offsets 38 to 998 more than once"
    assert range_size(10) == 100_000
    assert -(-(10**12) // range_size(10**12)) <= RANGES_MAX


def test_findings_that_lie_end_to_end_are_one() -> None:
    behind = [Finding(kind=Kind.DAMAGED, what="x", partition=0, start=n, end=n + 1, records=1) for n in range(2)]
    assert joined(behind) == behind, "each has its own place"


@pytest.mark.parametrize("module", ["sulina.errors.CorruptSegment", "sulina.spark.errors.TableFileGone"])
def test_what_ended_a_job_is_known_by_the_last_of_our_errors_in_its_traceback(module: str) -> None:
    text = (
        f"[PYTHON_EXCEPTION] Traceback …\nsulina.errors.ArchiveFailed: first\n\n{module}: it is gone\n SQLSTATE: 38000"
    )
    kind, what = said(PySparkException(text))
    assert kind is not None
    assert (kind.__name__, what) == (module.rpartition(".")[2], "it is gone")
    assert said(PySparkException("[OUT_OF_MEMORY] none left\n\tat …")) == (None, "none left")

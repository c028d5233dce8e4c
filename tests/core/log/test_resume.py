"""U6, U7, U8: what a new owner does with the directory that it finds. The table of `core/log/resume.py`."""

import pytest

from sulina.core.cluster.entries import Current, Sealed
from sulina.core.log.archive import ArchiveView
from sulina.core.log.log_state import LogState
from sulina.core.log.resume import (
    DirectoryState,
    End,
    Stamp,
    check_continues,
    check_joins,
    check_witnesses,
    directory_state,
    witnesses,
)
from sulina.errors import CorruptLog, LogIncomplete
from sulina.types import Epoch, Offset, Version

OURS = Stamp(topic_id="t1", holder="h1")


@pytest.mark.parametrize(
    ("exists", "stamp", "claimed_by", "is_adopted", "expected"),
    [
        (False, None, None, False, DirectoryState.ABSENT),
        (False, None, "h1", False, DirectoryState.ABSENT),
        (False, None, None, True, DirectoryState.ABSENT),
        (True, OURS, "h1", False, DirectoryState.NEWEST),
        (True, OURS, None, False, DirectoryState.NEWEST),
        (True, OURS, "h2", False, DirectoryState.OVERTAKEN),
        (True, OURS, "h2", True, DirectoryState.OVERTAKEN),
        (True, Stamp(topic_id="t0", holder="h1"), "h1", False, DirectoryState.FOREIGN),
        (True, Stamp(topic_id="t0", holder="h1"), None, True, DirectoryState.FOREIGN),
        (True, None, None, False, DirectoryState.FOREIGN),
        (True, None, None, True, DirectoryState.UNSTAMPED),
        (True, None, "h2", True, DirectoryState.FOREIGN),
    ],
)
def test_u8_precedence_is_by_claim_not_by_file_age(
    exists: bool, stamp: Stamp | None, claimed_by: str | None, is_adopted: bool, expected: DirectoryState
) -> None:
    found = directory_state(exists=exists, stamp=stamp, topic_id="t1", claimed_by=claimed_by, is_adopted=is_adopted)
    assert found is expected


def test_u8_a_directory_without_stamp_is_adopted_only_where_that_is_said() -> None:
    assert directory_state(exists=True, stamp=None, topic_id="t1", claimed_by=None) is DirectoryState.FOREIGN


def archive(next_offset: int, log_version: int) -> ArchiveView:
    return ArchiveView(
        version=Version(3),
        epoch=Epoch(2),
        holder="h1",
        start_offset=Offset(0),
        next_offset=Offset(next_offset),
        log_version=Version(log_version),
        slices=(),
    )


def local(next_offset: int, version: int) -> LogState:
    return LogState(next_offset=Offset(next_offset), version=Version(version))


@pytest.mark.parametrize(("next_offset", "version"), [(10, 4), (15, 9), (10, 5)])
def test_u8_a_directory_that_has_all_that_came_from_it_goes_on(next_offset: int, version: int) -> None:
    check_continues("d", local(next_offset, version), archive(10, 4), Offset(10))


@pytest.mark.parametrize(("next_offset", "version"), [(9, 4), (0, -1), (10, 3), (9, 9)])
def test_u7_a_directory_that_has_less_than_came_from_it_never_goes_on(next_offset: int, version: int) -> None:
    said = f"in some/dir .*ends at offset {next_offset}, version {version}, but offset 10, version 4 of it was archived"
    with pytest.raises(CorruptLog, match=said):
        check_continues("some/dir", local(next_offset, version), archive(10, 4), None)


@pytest.mark.parametrize(("log_version", "at_archived"), [(4, 9), (4, 11), (1, 9), (0, 9)])
def test_u7_a_directory_whose_history_is_another_never_goes_on(log_version: int, at_archived: int) -> None:
    with pytest.raises(CorruptLog, match=f"in some/dir .*its version {log_version} ends at {at_archived}, .*at 10"):
        check_continues("some/dir", local(15, 9), archive(10, log_version), Offset(at_archived))


def test_an_archive_of_records_without_commits_has_no_history_to_compare() -> None:
    check_continues("d", local(15, 9), archive(10, -1), Offset(9))


def test_u9_with_an_empty_archive_any_directory_goes_on() -> None:
    check_continues("d", local(0, -1), archive(0, -1), None)
    check_continues("d", local(100, 7), archive(0, -1), None)


def sealed(next_offset: int, version: int) -> Sealed:
    return Sealed(
        last_committed_offset=next_offset - 1,
        next_offset=next_offset,
        version=version,
        epoch=1,
        broker_id="a",
        ts="2026-01-01T00:00:00Z",
    )


def test_u7_a_witness_who_saw_more_keeps_the_topic_closed_and_one_who_saw_less_changes_nothing() -> None:
    end = End(Offset(10), Version(4), Epoch(1))
    for witness in (None, sealed(10, 4), sealed(3, 1), sealed(0, -1)):
        check_witnesses("/ns/t/0", "the archive", witnesses(witness, None, is_only_here=True), end)
    for witness in (sealed(11, 4), sealed(10, 5)):
        with pytest.raises(LogIncomplete, match=r"0 is closed: the archive ends at offset 10.*broker a sealed it"):
            check_witnesses("/ns/t/0", "the archive", witnesses(witness, None, is_only_here=True), end)


def current(archived: int, end: int, epoch: int = 1) -> Current:
    return Current(archived_offset=archived, end_offset=end, epoch=epoch, at_ms=0)


def test_u7_a_report_of_more_than_there_is_keeps_the_topic_closed() -> None:
    """U7, R10: the archive lost commits, the disk is an older copy, or the claim of the reporting owner is gone."""
    end = End(Offset(10), Version(4), Epoch(3))
    for report, is_only_here in ((current(10, 12, 3), False), (current(3, 10, 3), True), (current(0, 0, 2), True)):
        check_witnesses("/ns/t/0", "the archive", witnesses(None, report, is_only_here=is_only_here), end)
    for report, is_only_here in ((current(11, 12), False), (current(3, 11), True), (current(0, 0, 4), False)):
        with pytest.raises(LogIncomplete, match=rf"reported under epoch {report.epoch} that it"):
            check_witnesses("/ns/t/0", "the archive", witnesses(None, report, is_only_here=is_only_here), end)


def test_u7_the_archive_reaches_to_where_the_directory_begins() -> None:
    filled, unknown = witnesses(None, current(5, 5), is_only_here=False), witnesses(None, None, is_only_here=False)
    check_joins("/ns/t/0", filled, Offset(10), Offset(20), archive(10, 4))
    check_joins(
        "/ns/t/0", unknown, Offset(10), Offset(20), archive(0, -1)
    )  # nothing was ever archived: retention came first
    for heard, view in ((unknown, archive(9, 4)), (filled, archive(0, -1))):
        with pytest.raises(
            LogIncomplete, match=r"which holds \[10, 20\), goes on from it at offset 10.*20\) are missing"
        ):
            check_joins("/ns/t/0", heard, Offset(10), Offset(20), view)


def test_u7_what_was_sealed_had_all_been_archived() -> None:
    """U7, R10: an archive that lost everything is not one that never had anything, by the word of who sealed it."""
    for witness, is_refused in ((sealed(1, 0), True), (sealed(0, -1), False)):
        heard = witnesses(witness, None, is_only_here=True)
        if not is_refused:
            check_joins("/ns/t/0", heard, Offset(10), Offset(20), archive(0, -1))
            continue
        with pytest.raises(LogIncomplete, match="the archive ends at offset 0"):
            check_joins("/ns/t/0", heard, Offset(10), Offset(20), archive(0, -1))


def test_u7_who_sealed_under_an_epoch_that_a_log_does_not_know_keeps_it_closed() -> None:
    heard = witnesses(sealed(10, 4), None, is_only_here=True)
    with pytest.raises(LogIncomplete):
        check_witnesses("/ns/t/0", "the archive", heard, End(Offset(10), Version(4), Epoch(0)))


@pytest.mark.parametrize(("is_only_here", "said"), [(True, "had records up to offset 9"), (False, "had archived it")])
def test_u7_an_error_says_what_the_owner_reported(is_only_here: bool, said: str) -> None:
    [witness] = witnesses(None, current(7, 9), is_only_here=is_only_here)
    assert said in witness.source
    check_witnesses("/ns/t/0", "the archive", [witness], End(Offset(9), Version(-1), Epoch(1)))

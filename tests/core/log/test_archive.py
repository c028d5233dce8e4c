"""How a log is cut into slices, found again, merged and forgotten: the rules, without an object store."""

import random
from collections.abc import Sequence

import pytest

from sulina.core.log.archive import (
    MERGE_SLICES_MIN,
    MERGE_SPAN_MS,
    SLICE_BYTES_MAX,
    SLICE_COMMITS_MAX,
    STATE_AFTER_COMMIT_BYTES,
    STATE_EVERY_SLICES,
    ArchiveView,
    Cut,
    commits_name,
    decode_commits,
    encode_commits,
    expired_slices,
    is_object_name,
    is_state_due,
    merge_run,
    missing,
    object_name,
    objects_of,
    slice_at,
    slice_of_version,
    state_name,
)
from sulina.core.log.commit import Add, AnyOperation, Claim, Commit, Remove, SegmentRef
from sulina.core.log.log_state import LogState
from sulina.core.log.retention import Retention
from sulina.core.log.segment import segment_name
from sulina.errors import CorruptCommit
from sulina.types import Epoch, Offset, Version


def slice_of(
    base: int,
    end: int,
    *,
    size: int | None = None,
    epoch: int = 1,
    versions: tuple[int, int] = (0, 0),
    state: bool = False,
    written_ms: int = 0,
    commits_size: int = 100,
) -> SegmentRef:
    name = object_name(base, f"{base}x{versions[0]}")
    return SegmentRef(
        name=segment_name(base),
        base=Offset(base),
        next_offset=Offset(end),
        size=(end - base) * 10 if size is None else size,
        epoch=Epoch(epoch),
        created_ms=written_ms,
        written_ms=written_ms,
        timestamp_max=0,
        sealed=True,
        object=name,
        version_start=Version(versions[0]),
        version_end=Version(versions[1]),
        commits_size=commits_size,
        state=state_name(name) if state else None,
    )


def commit_of(version: int, operations: Sequence[AnyOperation], *, epoch: int = 1, next_offset: int = 0) -> Commit:
    return Commit(
        version=Version(version),
        timestamp="2026-01-01T00:00:00.000Z",
        txn_id=f"w:{version}",
        operations=tuple(operations),
        checkpoint_hint=False,
        epoch=Epoch(epoch),
        start_offset=Offset(0),
        next_offset=Offset(next_offset),
    )


def adding(start: int, end: int, size: int = 100, timestamp: int = 5) -> Add:
    return Add(
        origin_id=-1,
        origin_seq=-1,
        offset_start=Offset(start),
        offset_end=Offset(end),
        segment=segment_name(0),
        position=0,
        size=size,
        timestamp_max=timestamp,
    )


# Names


def test_the_objects_of_a_slice_are_named_after_its_first_offset_and_lie_beside_each_other() -> None:
    name = object_name(42, "abc")
    assert (name, commits_name(name)) == ("00000000000000000042-abc.log", "00000000000000000042-abc.commits")
    assert objects_of(slice_of(0, 5, state=True)) == [
        "00000000000000000000-0x0.log",
        "00000000000000000000-0x0.commits",
        "00000000000000000000-0x0.state",
    ]
    assert objects_of(slice_of(7, 7, versions=(3, 4))) == ["00000000000000000007-7x3.commits"]
    assert objects_of(slice_of(0, 5, commits_size=0)) == ["00000000000000000000-0x0.log"]


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        (object_name(1, "a"), True),
        (object_name(1, "a.b"), True),
        (commits_name(object_name(1, "a")), True),
        (state_name(object_name(1, "a")), True),
        ("00000000000000000001.log", False),
        ("_delta_log/00000000000000000001.json", False),
        ("readme.log", False),
        ("", False),
    ],
)
def test_only_objects_of_slices_are_ever_taken_for_orphans(name: str, is_ours: bool) -> None:
    assert is_object_name(name) is is_ours


def test_a_view_of_an_archive_is_what_its_log_says() -> None:
    state = LogState(
        version=Version(7),
        epoch=Epoch(4),
        holder="h",
        claimer="b",
        start_offset=Offset(5),
        next_offset=Offset(9),
        log_version=Version(6),
        segments=[slice_of(5, 9)],
    )
    view = ArchiveView.of(state)
    assert view == ArchiveView(Version(7), Epoch(4), "h", Offset(5), Offset(9), Version(6), (slice_of(5, 9),), "b")
    state.segments.clear()
    assert len(view.slices) == 1, "it never changes"


@pytest.mark.parametrize(
    ("log_version", "next_offset", "is_empty"), [(-1, 0, True), (0, 0, False), (-1, 1, False), (0, 1, False)]
)
def test_u9_an_archive_is_empty_before_its_first_commit_and_record(
    log_version: int, next_offset: int, is_empty: bool
) -> None:
    state = LogState(log_version=Version(log_version), next_offset=Offset(next_offset))
    assert ArchiveView.of(state).is_empty is is_empty


# Cutting


def test_a_slice_takes_commits_until_it_is_full() -> None:
    cut = Cut(Offset(0), Version(0), bytes_max=250)
    commits = [commit_of(n, [adding(n, n + 1, timestamp=n)], next_offset=n + 1) for n in range(5)]
    taken = 0
    for commit in commits:
        if not cut.takes(commit):
            break
        cut.add(commit)
        taken += 1
    assert (taken, cut.version_end, cut.offset_end, cut.size, cut.timestamp_max) == (3, 3, 3, 300, 2)


def test_a_slice_that_has_reached_its_size_or_number_takes_no_more() -> None:
    commits = [commit_of(n, [adding(n, n + 1)], next_offset=n + 1) for n in range(3)]
    cut = Cut(Offset(0), Version(0), bytes_max=200)
    cut.add(commits[0])
    assert cut.takes(commits[1])
    cut.add(commits[1])
    assert not cut.takes(commits[2])
    many = [commit_of(n, []) for n in range(SLICE_COMMITS_MAX)]
    assert Cut(Offset(0), Version(0), commits=many[:-1]).takes(many[-1])
    assert not Cut(Offset(0), Version(0), commits=many).takes(commit_of(SLICE_COMMITS_MAX, []))


def test_a_claim_begins_a_slice_so_that_all_its_batches_have_one_epoch() -> None:
    cut = Cut(Offset(0), Version(0))
    claim = commit_of(0, [Claim(epoch=Epoch(3), broker_id="a")], epoch=3)
    assert cut.takes(claim)
    cut.add(claim)
    cut.add(commit_of(1, [adding(0, 1)], epoch=3, next_offset=1))
    assert cut.epoch == 3
    assert not cut.takes(commit_of(2, [Claim(epoch=Epoch(4), broker_id="b")], epoch=4))


def test_a_slice_never_skips_a_version() -> None:
    cut = Cut(Offset(0), Version(4))
    with pytest.raises(CorruptCommit, match="5 is damaged: version 4 is due"):
        cut.add(commit_of(5, []))


def test_commits_come_back_as_they_were_and_only_as_the_slice_says() -> None:
    commits = [commit_of(n, [adding(n, n + 1)], next_offset=n + 1) for n in range(3, 6)]
    data = encode_commits(commits)
    assert decode_commits("x", data, slice_of(3, 6, versions=(3, 6))) == commits
    with pytest.raises(CorruptCommit, match=r"x is .*versions 3:7"):
        decode_commits("x", data, slice_of(3, 6, versions=(3, 7)))
    with pytest.raises(CorruptCommit, match=r"x is .*checksum"):
        decode_commits("x", data.replace(b"w:4", b"w:9"), slice_of(3, 6, versions=(3, 6)))


def test_a_state_is_due_after_a_number_of_slices_but_not_for_each_small_one() -> None:
    slices = [slice_of(n, n + 1, state=n == 0) for n in range(STATE_EVERY_SLICES)]
    assert not is_state_due(slices, 0)
    assert is_state_due([*slices, slice_of(99, 100)], 0)
    many_commits = [slice_of(0, 1, state=True), slice_of(1, 2, commits_size=3 << 20)]
    assert is_state_due(many_commits, 0)
    assert not is_state_due(many_commits, 2 << 20)


@pytest.mark.parametrize("last_state_bytes", [0, STATE_AFTER_COMMIT_BYTES // 2, 3 * STATE_AFTER_COMMIT_BYTES])
def test_a_state_is_due_after_a_number_of_bytes_of_commits_in_all_slices_since_the_last(last_state_bytes: int) -> None:
    half = max(STATE_AFTER_COMMIT_BYTES // 2, last_state_bytes)
    old = slice_of(0, 1, state=True, commits_size=9 * half)
    assert not is_state_due([old, *[slice_of(n, n + 1, commits_size=half) for n in (1, 2)]], last_state_bytes)
    slices = [old, slice_of(1, 2, commits_size=half), slice_of(2, 3, commits_size=half), slice_of(3, 4, commits_size=1)]
    assert is_state_due(slices, last_state_bytes)


# Finding


def test_offsets_and_versions_are_found_although_some_slices_have_none() -> None:
    slices = [
        slice_of(0, 0, versions=(0, 1)),
        slice_of(0, 5, versions=(1, 3)),
        slice_of(5, 5, versions=(3, 4)),
        slice_of(5, 5, versions=(4, 6)),
        slice_of(5, 9, versions=(6, 7)),
    ]
    assert [slice_at(slices, offset) for offset in (0, 4, 5, 8, 9)] == [1, 1, 4, 4, 5]
    assert [slice_of_version(slices, version) for version in range(8)] == [0, 1, 1, 2, 3, 3, 4, 5]


def ranges(*found: tuple[int, int, int]) -> list[tuple[Offset, Offset, Epoch]]:
    return [(Offset(low), Offset(high), Epoch(epoch)) for low, high, epoch in found]


def test_u8_what_a_directory_has_is_missed_only_where_the_archive_has_no_record_of_the_same_epoch() -> None:
    slices = [slice_of(0, 10, epoch=1), slice_of(10, 10, epoch=2), slice_of(10, 20, epoch=2)]
    assert missing(ranges((0, 10, 1)), slices, Offset(0)) == []
    assert missing(ranges((0, 12, 1)), slices, Offset(0)) == [(10, 12)]
    assert missing(ranges((4, 10, 1), (10, 15, 2)), slices, Offset(0)) == []
    assert missing(ranges((10, 25, 2)), slices, Offset(0)) == [(20, 25)]
    assert missing(ranges((0, 10, 3)), slices, Offset(0)) == [(0, 10)]
    assert missing(ranges((20, 25, 2), (25, 30, 2)), slices, Offset(0)) == [(20, 30)]


def test_u8_what_another_epoch_has_in_its_place_is_missed_and_nothing_beyond_the_range() -> None:
    slices = [slice_of(0, 5), slice_of(5, 8, epoch=2), slice_of(8, 8, epoch=2), slice_of(8, 20)]
    assert missing(ranges((0, 20, 1)), slices, Offset(0)) == [(5, 8)]
    assert missing(ranges((0, 7, 1)), slices, Offset(0)) == [(5, 7)]
    assert missing(ranges((0, 20, 2)), slices, Offset(0)) == [(0, 5), (8, 20)]
    empty = [slice_of(0, 5), slice_of(5, 5), slice_of(5, 20)]
    assert missing(ranges((0, 20, 1)), empty, Offset(0)) == []


def test_what_retention_has_taken_nobody_misses() -> None:
    slices = [slice_of(10, 20, epoch=2)]
    assert missing(ranges((0, 12, 2)), slices, Offset(10)) == []
    assert missing(ranges((0, 12, 1)), slices, Offset(10)) == [(10, 12)]
    assert missing(ranges((0, 12, 1)), [], Offset(30)) == []


# Forgetting


def test_retention_never_takes_the_newest_state_nor_what_follows_it() -> None:
    slices = [slice_of(n, n + 1, versions=(n, n + 1), state=n == 2) for n in range(5)]
    removals = expired_slices(slices, Retention(bytes_max=0), now=0.0)
    assert removals == [
        Remove(
            segment=slice_.name,
            offset_start=slice_.base,
            offset_end=slice_.next_offset,
            size=slice_.size,
            object=slice_.object,
        )
        for slice_ in slices[:2]
    ]
    assert expired_slices([slice_of(0, 1), slice_of(1, 2)], Retention(bytes_max=0), now=0.0) == []


def test_retention_takes_what_is_too_old_or_too_much() -> None:
    slices = [slice_of(n, n + 1, written_ms=n * 1000, state=n == 4) for n in range(5)]
    assert len(expired_slices(slices, Retention(age_seconds_max=2.5), now=4.0)) == 2
    assert len(expired_slices(slices, Retention(bytes_max=30), now=4.0)) == 2


# Merging


def merged(parts: Sequence[SegmentRef]) -> SegmentRef:
    """As the archive's log does it."""
    first, last = parts[0], parts[-1]
    return slice_of(
        first.base,
        last.next_offset,
        size=sum(part.size for part in parts),
        epoch=first.epoch,
        versions=(first.version_start, last.version_end),
        state=last.state is not None,
    )


def test_the_number_of_slices_grows_with_the_bytes_in_them_and_each_byte_is_written_a_few_times() -> None:
    rng = random.Random(5)
    slices: list[SegmentRef] = []
    written = total = offset = 0
    for _ in range(6_000):
        size = rng.randint(200, 2000)
        slices.append(slice_of(offset, offset + 1, size=size, state=offset % STATE_EVERY_SLICES == 0))
        offset, total = offset + 1, total + size
        while (run := merge_run(slices[-400:])) is not None:  # older ones are done
            first, end = (max(0, len(slices) - 400) + at for at in run)
            written += sum(part.size for part in slices[first:end])
            slices[first:end] = [merged(slices[first:end])]
    assert len(slices) < 100, "6,000 small slices are not merged"
    assert written < 4 * total
    assert max(slice_.size for slice_ in slices) <= SLICE_BYTES_MAX
    assert [slice_.base for slice_ in slices[1:]] == [slice_.next_offset for slice_ in slices[:-1]]


def test_a_run_has_one_epoch_but_slices_without_records_do_not_count() -> None:
    count = MERGE_SLICES_MIN
    first = [slice_of(n, n + 1, epoch=1) for n in range(count - 1)]
    assert merge_run([*first, slice_of(count, count + 1, epoch=2)]) is None
    assert merge_run([*first, slice_of(count - 1, count - 1, epoch=2)]) == (0, count)


def test_a_slice_without_records_does_not_join_two_epochs() -> None:
    half = MERGE_SLICES_MIN // 2
    slices = [slice_of(n, n + 1, epoch=1) for n in range(half)]
    slices += [slice_of(half, half, epoch=2), *[slice_of(n, n + 1, epoch=2) for n in range(half, 2 * half)]]
    assert merge_run(slices) is None


def test_a_run_is_no_larger_than_a_slice_may_be() -> None:
    slices = [slice_of(n, n + 1, size=100) for n in range(MERGE_SLICES_MIN)]
    assert merge_run(slices, bytes_max=100 * MERGE_SLICES_MIN) == (0, MERGE_SLICES_MIN)
    assert merge_run(slices, bytes_max=100 * MERGE_SLICES_MIN - 1) is None


@pytest.mark.parametrize(("span_ms", "is_merged"), [(MERGE_SPAN_MS, True), (MERGE_SPAN_MS + 1, False)])
def test_l15_what_is_merged_was_written_at_about_one_time(span_ms: int, is_merged: bool) -> None:
    begun = 10 * MERGE_SPAN_MS
    slices = [slice_of(n, n + 1, written_ms=begun) for n in range(MERGE_SLICES_MIN - 1)]
    slices.append(slice_of(MERGE_SLICES_MIN, MERGE_SLICES_MIN + 1, written_ms=begun + span_ms))
    assert (merge_run(slices) is not None) is is_merged


def test_a_run_begins_behind_the_newest_state() -> None:
    slices = [slice_of(n, n + 1, state=n == 0) for n in range(MERGE_SLICES_MIN + 1)]
    assert merge_run(slices) == (1, MERGE_SLICES_MIN + 1)


def test_a_run_never_swallows_the_newest_state() -> None:
    count = MERGE_SLICES_MIN
    slices = [slice_of(n, n + 1, state=n in (3, count // 2)) for n in range(2 * count)]
    run = merge_run(slices)
    assert run is not None
    assert run[0] > count // 2
    with_state_at_the_end = [slice_of(n, n + 1, state=n in (3, count - 1)) for n in range(count)]
    assert merge_run(with_state_at_the_end) == (0, count)


def test_large_slices_and_short_runs_are_left_alone() -> None:
    assert merge_run([slice_of(n, n + 1, size=8 << 20) for n in range(100)], bytes_max=1 << 40) is None
    assert merge_run([slice_of(n, n + 1) for n in range(MERGE_SLICES_MIN - 1)]) is None
    assert merge_run([]) is None

"""Where a log goes on for a reader of offsets that were given up: positions carry the epoch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.log.commit import SegmentRef
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.segment import segment_name
from sulina.types import Epoch, Offset


def run(base: int, next_offset: int, epoch: int) -> SegmentRef:
    """A segment or a slice."""
    return SegmentRef(
        name=segment_name(base),
        base=Offset(base),
        next_offset=Offset(next_offset),
        size=100 * (next_offset - base),
        epoch=Epoch(epoch),
        created_ms=0,
        written_ms=0,
        timestamp_max=0,
        sealed=True,
    )


def history(*segments: SegmentRef, slices: tuple[SegmentRef, ...] = (), epoch: int, end: int) -> EpochHistory:
    return EpochHistory(Epoch(epoch), Offset(end), segments, slices)


# Epoch 3 wrote [0, 30), epoch 5 wrote [30, 50) and more that was given up, epoch 8 goes on at 50.
GIVEN_UP = history(run(0, 30, 3), run(30, 50, 5), run(50, 80, 8), epoch=8, end=80)


@pytest.mark.parametrize(
    ("offset", "epoch", "continues_at"),
    [
        (0, 3, None),
        (30, 3, None),
        (50, 5, None),
        (51, 5, 50),
        (80, 5, 50),  # as far as the log has come since
        (200, 5, 50),  # further than it has
        (200, 7, 50),  # of an epoch that has left nothing
        (31, 3, 30),
        (31, 4, 30),
        (50, 8, None),
        (80, 8, None),
        (81, 8, 80),  # more than there is
    ],
)
def test_u10_a_position_past_the_end_of_its_epoch_goes_back_to_it(
    offset: int, epoch: int, continues_at: int | None
) -> None:
    assert GIVEN_UP.continuation(offset, epoch) == continues_at


def test_u10_the_new_owner_may_have_written_nothing_yet() -> None:
    empty = history(run(0, 30, 3), run(30, 50, 5), epoch=8, end=50)
    assert [empty.continuation(offset, 5) for offset in (50, 51, 90)] == [None, 50, 50]
    nothing = history(epoch=8, end=0)
    assert [nothing.continuation(offset, 5) for offset in (0, 1)] == [None, 0]


def test_u10_the_archive_knows_what_the_disk_no_longer_has() -> None:
    slices = (run(10, 30, 3), run(30, 50, 5), run(50, 60, 8))
    moved = history(slices=slices, epoch=9, end=60)
    assert [moved.continuation(70, epoch) for epoch in (2, 3, 5, 8, 9)] == [10, 30, 50, 60, 60]
    grown = history(run(60, 75, 9), slices=slices, epoch=9, end=75)
    assert [grown.continuation(76, epoch) for epoch in (2, 3, 5, 8, 9)] == [10, 30, 50, 60, 75]
    overlapping = history(run(30, 50, 5), run(50, 75, 8), slices=slices, epoch=8, end=75)
    assert [overlapping.continuation(76, epoch) for epoch in (2, 3, 5, 8)] == [10, 30, 50, 75]


def test_u10_what_readers_may_not_see_yet_is_nowhere_to_go() -> None:
    unseen = history(run(0, 50, 5), run(50, 80, 8), epoch=8, end=40)
    assert unseen.continuation(45, 5) == 40


def test_nothing_is_known_of_a_position_that_is_newer_than_the_log() -> None:
    assert GIVEN_UP.continuation(200, 9) is None


@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(1, 3)), min_size=1, max_size=8),
    data=st.data(),
)
def test_u10_no_record_is_passed_over_whatever_is_given_up(
    lengths: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """A model: each owner writes, some of its newest records are given up, the next goes on; readers stand anywhere."""
    log: list[tuple[int, int]] = []  # (epoch, number): no two records are the same
    positions: list[tuple[int, int, list[tuple[int, int]]]] = []  # offset, epoch, what was read before it
    epoch = 0
    for written, lost, step in lengths:
        epoch += step
        log += [(epoch, number) for number in range(written)]
        for _ in range(2):
            offset = data.draw(st.integers(0, len(log)))
            oldest = log[offset - 1][0] if offset else 0
            positions.append((offset, data.draw(st.integers(oldest, epoch)), log[:offset]))
        del log[max(0, len(log) - lost) :]
    epoch += 1
    runs: list[SegmentRef] = []
    for offset, (of, _) in enumerate(log):
        if runs and runs[-1].epoch == of:
            runs[-1] = run(runs[-1].base, offset + 1, of)
        else:
            runs.append(run(offset, offset + 1, of))
    cut = data.draw(st.integers(0, len(runs)))
    seen = EpochHistory(Epoch(epoch), Offset(len(log)), runs[cut:], runs[: data.draw(st.integers(cut, len(runs)))])
    for offset, of, read in positions:
        again = seen.continuation(offset, of)
        on_from = offset if again is None else again
        assert on_from <= len(log)
        assert log[:on_from] == read[:on_from], "nothing is passed over that was not read"
        assert not set(log[on_from:]) & set(read), "and nothing comes twice"

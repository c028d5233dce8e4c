"""What registered readers still need (S7), and for how long it counts."""

import pytest

from sulina.core.cluster import keys
from sulina.core.delivery.readers import (
    EXPIRES_SECONDS,
    EXPIRES_SECONDS_MAX,
    SHOWN_SECONDS,
    NeededOffsets,
    ReaderPosition,
    RegisteredReader,
    gone_back,
    grouped,
    needed,
)
from sulina.core.log.commit import SegmentRef
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.log_state import NO_EPOCH
from sulina.core.log.segment import segment_name
from sulina.errors import CorruptCommit, InvalidName
from sulina.types import Epoch, Offset, PartitionName, TopicName, checked_reader

ORDERS, CARTS = TopicName.parse("/default/orders"), TopicName.parse("/default/carts")
DAY = 24 * 3600


def at(offset: int, *, day: float = 0, expires_days: float = 7, epoch: int = NO_EPOCH) -> ReaderPosition:
    return ReaderPosition(
        offset=offset, updated_ms=int(day * DAY * 1000), expires_seconds=expires_days * DAY, epoch=epoch
    )


def on(day: float) -> int:
    return int(day * DAY * 1000)


def test_s7_the_lowest_position_of_the_live_readers_is_kept() -> None:
    readers = [
        RegisteredReader("a", ORDERS, {0: at(17), 1: at(4)}),
        RegisteredReader("b", ORDERS, {0: at(9, day=3)}),
        RegisteredReader("c", CARTS, {0: at(1)}),
    ]
    kept = {PartitionName(ORDERS, 0): 9, PartitionName(ORDERS, 1): 4, PartitionName(CARTS, 0): 1}
    assert firsts(needed(readers, on(6))) == kept
    assert firsts(needed(readers, on(7.5))) == {PartitionName(ORDERS, 0): 9}, "only b has been heard of since"
    assert needed(readers, on(11)) == {}
    assert needed([], on(0)) == {}
    assert firsts(needed(reversed(readers), on(6))) == kept, "whoever is asked first"


# Epoch 0 wrote [0, 12) and more that was given up, epoch 4 goes on at 12.
LOG = EpochHistory(
    Epoch(4),
    Offset(100),
    [
        SegmentRef(
            name=segment_name(base), base=Offset(base), next_offset=Offset(end), size=1, epoch=Epoch(epoch),
            created_ms=0, written_ms=0, timestamp_max=0,
        )
        for base, end, epoch in ((0, 12, 0), (12, 100, 4))
    ],
)  # fmt: skip


def firsts(needs: dict[PartitionName, NeededOffsets]) -> dict[PartitionName, int | None]:
    return {partition: offsets.first_in(LOG) for partition, offsets in needs.items()}


@pytest.mark.parametrize(
    ("positions", "kept"),
    [
        ([(17, 0)], 12),  # what it had read was given up: it needs what has those offsets now
        ([(17, 4)], 17),
        ([(17, NO_EPOCH)], 17),  # it did not say
        ([(9, 0)], 9),
        ([(17, 4), (30, 0)], 12),
        ([(10, 4), (30, 0)], 10),
    ],
)
def test_u10_what_a_reader_of_given_up_records_needs_is_kept_from_where_the_log_goes_on(
    positions: list[tuple[int, int]], kept: int
) -> None:
    readers = [
        RegisteredReader(f"r{number}", ORDERS, {0: at(offset, epoch=epoch)})
        for number, (offset, epoch) in enumerate(positions)
    ]
    assert firsts(needed(readers, on(0))) == {PartitionName(ORDERS, 0): kept}


def test_u10_a_reader_may_go_back_into_a_later_epoch() -> None:
    before = {0: at(17, epoch=3)}
    assert gone_back(before, {0: 12}, {0: 4}) is None
    assert gone_back(before, {0: 12}, {0: 3}) == 0
    assert gone_back(before, {0: 12}, {}) == 0
    assert gone_back({0: at(17)}, {0: 12}, {0: 4}) == 0, "nobody knows what it had read"


def test_s7_a_reader_that_is_heard_of_in_one_partition_counts_in_all() -> None:
    reader = RegisteredReader("a", ORDERS, {0: at(17), 1: at(4, day=10, expires_days=2)})
    assert not reader.is_expired(on(11.9))
    assert firsts(needed([reader], on(11.9)))[PartitionName(ORDERS, 0)] == 17
    assert reader.is_expired(on(12.1)), "by what it said last"


def test_s7_an_expired_reader_is_shown_for_a_day_then_forgotten() -> None:
    reader = RegisteredReader("a", ORDERS, {0: at(17)})
    just = on(0) + int(EXPIRES_SECONDS * 1000)
    assert (reader.is_expired(just), reader.is_expired(just + 1)) == (False, True)
    assert not reader.is_deletable(just + SHOWN_SECONDS * 1000)
    assert reader.is_deletable(just + SHOWN_SECONDS * 1000 + 1)


def test_s7_a_position_that_cannot_be_read_holds_everything() -> None:
    partition = PartitionName(ORDERS, 0)
    assert firsts(needed([RegisteredReader("a", ORDERS, {0: at(17)})], on(0), [partition])) == {partition: 0}


def test_positions_are_grouped_by_reader_and_topic() -> None:
    partitions = [PartitionName(ORDERS, 0), PartitionName(CARTS, 0), PartitionName(ORDERS, 3)]
    found = grouped(("a", partition, at(1)) for partition in partitions)
    assert found == {
        ("a", ORDERS): RegisteredReader("a", ORDERS, {0: at(1), 3: at(1)}),
        ("a", CARTS): RegisteredReader("a", CARTS, {0: at(1)}),
    }


def test_s7_going_back_is_noticed() -> None:
    before = {0: at(17), 1: at(4)}
    assert gone_back(before, {0: 17, 1: 5, 2: 0}, {}) is None
    assert gone_back(before, {1: 3, 0: 16}, {}) == 0
    assert gone_back({}, {0: 0}, {}) is None


def test_a_position_is_stored_and_loaded() -> None:
    position = ReaderPosition(offset=2**62, updated_ms=5, expires_seconds=1.5, kind="spark", description="a b")
    assert ReaderPosition.load("k", position.stored()) == position
    for data in (
        b"", b"{}", b"\xff", b'{"offset":-1,"updated_ms":0}', b'{"offset":1,"updated_ms":0,"expires_seconds":0}',
        b'{"offset":1,"updated_ms":0,"expires_seconds":%d}' % (EXPIRES_SECONDS_MAX + 1),
        b'{"offset":1,"updated_ms":0,"kind":"%s"}' % (b"x" * 201),
    ):  # fmt: skip
        with pytest.raises(CorruptCommit, match=r"/readers/x is damaged: (?!None)\S"):
            ReaderPosition.load("/readers/x", data)


def test_a_key_names_its_reader_and_partition() -> None:
    partition = PartitionName(ORDERS, 12)
    key = keys.reader_position("nightly.v2", partition)
    assert key == "/readers/nightly.v2/default/orders/12"
    assert key.startswith(keys.reader_prefix("nightly.v2", ORDERS))
    assert keys.reader_of(key) == ("nightly.v2", partition)
    for other in ("/readers/a", "/readers/a/b/c", "/readers/a/b/c/d/e", "/readers/a/b/c/x", "/readers/a/../c/0"):
        with pytest.raises((ValueError, InvalidName)):
            keys.reader_of(other)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0b", "x" * 201, "naïve", " a"])
def test_s7_the_name_of_a_reader_is_checked(name: str) -> None:
    with pytest.raises(InvalidName, match="reader name"):
        checked_reader(name)


def test_a_partition_that_nobody_reads_is_needed_by_nobody() -> None:
    assert NeededOffsets().first_in(LOG) is None

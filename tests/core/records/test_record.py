"""Records survive the way to a batch and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.records.batch import parse_header, validate
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.errors import InvalidBatch

MILLISECONDS = st.integers(-(2**61), 2**61)
BLOBS = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=10), BLOBS), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(StoredRecord, key=BLOBS, value=BLOBS, timestamp_ms=MILLISECONDS, headers=HEADERS),
    min_size=1,
    max_size=20,
)


def numbered(records: list[StoredRecord], base_offset: int = 0) -> list[StoredRecord]:
    return [
        StoredRecord(
            key=record.key,
            value=record.value,
            timestamp_ms=record.timestamp_ms,
            headers=record.headers,
            offset=base_offset + index,
        )
        for index, record in enumerate(records)
    ]


@given(records=RECORDS, codec=st.integers(0, 4), base_offset=st.integers(0, 2**62))
def test_records_come_back_with_their_offsets(records: list[StoredRecord], codec: int, base_offset: int) -> None:
    batch = encode(records, codec=codec, base_offset=base_offset)
    validate(batch)
    assert decode(batch) == numbered(records, base_offset)


def test_lengths_come_back_at_every_border_of_a_varint() -> None:
    sizes = [0, 1, 63, 64, 127, 128, 1023, 1024, 8191, 8192, 1 << 20, (1 << 20) + 1]
    records = [StoredRecord(key=b"k" * size, value=b"v" * size, headers=(("h" * size, b"w" * size),)) for size in sizes]
    assert decode(encode(records)) == numbered(records)


def test_timestamps_come_back_at_the_ends_of_64_bits() -> None:
    ends = [StoredRecord(value=b"", timestamp_ms=stamp) for stamp in (0, 2**63 - 1, -(2**63), -1, 2**31, -(2**31))]
    assert decode(encode(ends)) == numbered(ends)


@pytest.mark.parametrize("stamps", [(2**63, 2**63), (-1, 2**63 - 1), (0, 2**64)])
def test_timestamps_that_64_bits_do_not_hold_are_refused(stamps: tuple[int, int]) -> None:
    with pytest.raises(InvalidBatch, match=r"does not fit|64 bits"):
        encode([StoredRecord(value=b"", timestamp_ms=stamp) for stamp in stamps])


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(InvalidBatch, match="at least one record"):
        encode([])


def test_numbers_that_their_fields_do_not_hold_are_refused() -> None:
    with pytest.raises(InvalidBatch, match="does not fit"):
        encode([StoredRecord(value=b"")], producer_epoch=1 << 15)


def test_decoding_starts_at_a_position_and_stops_at_the_end_of_the_batch() -> None:
    first, second = encode([StoredRecord(value=b"a")]), encode([StoredRecord(value=b"b")], base_offset=1)
    both = bytes(first + second)
    assert [record.value for record in decode(both)] == [b"a"]
    assert decode(both, position=len(first)) == [StoredRecord(value=b"b", offset=1)]
    assert decode(both, parse_header(both, len(first)), len(first)) == [StoredRecord(value=b"b", offset=1)]
    with pytest.raises(InvalidBatch, match="are there"):
        decode(both[:-1], position=len(first))


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = encode([StoredRecord(value=b"a", timestamp_ms=5), StoredRecord(value=b"b", timestamp_ms=9)])
    batch[22] |= 0x08
    assert [record.timestamp_ms for record in decode(batch)] == [9, 9]


def test_control_batches_have_no_records_for_readers() -> None:
    batch = encode([StoredRecord(value=b"a")])
    batch[22] |= 0x20
    assert decode(batch) == []


def test_offsets_follow_the_patched_base() -> None:
    batch = encode([StoredRecord(value=b"a"), StoredRecord(value=b"b")])
    batch[:8] = (100).to_bytes(8)
    assert [record.offset for record in decode(batch)] == [100, 101]

"""Which partition a key belongs to: as Kafka's own clients have it."""

import pytest
from aiokafka.partitioner import murmur2 as kafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.records.routing import murmur2, partition_of, partitions_of


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_java_client(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


@given(st.binary(max_size=100))
def test_the_hash_is_that_of_kafkas_python_client(key: bytes) -> None:
    assert murmur2(key) == kafka_murmur2(bytearray(key)) & 0xFFFFFFFF


@given(st.binary(max_size=50), st.integers(1, 1000))
def test_a_key_has_one_partition(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions
    assert partitions_of([key, None, key], partitions) == {partition_of(key, partitions)}

"""The partition of a record: by its key, with the hash that Kafka's own clients use, else by its txn_id."""

from collections.abc import Iterable

from sulina.errors import KeysSpanPartitions

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Compute MurmurHash2 as Kafka's Java client does, as an unsigned integer of 32 bits."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    end = length & ~3
    for position in range(0, end, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if length > end:
        h = (h ^ int.from_bytes(data[end:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition for records with `key`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def chosen_partition(keys: Iterable[bytes | None], txn_id: str | None, partitions: int, *, topic: str) -> int | None:
    """Return the partition for the keys of a publish, else for its `txn_id`; None if any partition is right.

    A repeated publish with a `txn_id` gets to the same partition, which knows the first answer.
    Raises:
        KeysSpanPartitions: the keys belong to several partitions of `topic`.
    """
    named = partitions_of(keys, partitions)
    if len(named) > 1:
        raise KeysSpanPartitions(topic=topic, partitions=", ".join(map(str, sorted(named))))
    if named:
        return named.pop()
    return None if txn_id is None else partition_of(txn_id.encode(errors="replace"), partitions)


def partitions_of(keys: Iterable[bytes | None], partitions: int) -> set[int]:
    """Return the partitions for the keys of some records; records without a key do not count."""
    return {partition_of(key, partitions) for key in set(keys) if key is not None}

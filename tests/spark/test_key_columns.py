"""Keys in bulk go where they go one by one."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.records.routing import partition_of
from sulina.spark.key_columns import column_partitions


@given(st.lists(st.binary(max_size=40) | st.none(), max_size=50), st.integers(1, 1000), st.integers(0, 5))
def test_f_keys_in_bulk_go_where_they_go_one_by_one(keys: list[bytes | None], partitions: int, skipped: int) -> None:
    column = pa.array(keys, pa.binary()).slice(skipped)
    expected = [0 if key is None else partition_of(key, partitions) for key in keys[skipped:]]
    assert column_partitions(column, partitions, 0).tolist() == expected


def test_text_is_hashed_as_its_bytes() -> None:
    expected = [partition_of("ä".encode(), 7), partition_of(b"b", 7)]
    assert column_partitions(pa.array(["ä", "b"]), 7, 0).tolist() == expected

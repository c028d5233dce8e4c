"""Spark's Python daemon with everything that workers need already in memory: each is a fork of it, and begins at once.

`session()` sets it as `spark.python.daemon.module`. Without it a worker imports for two seconds, and loads kernels for
one more, each time that Spark has none to spare.
"""

import pyarrow as pa
from pyspark.daemon import manager

import sulina.client
import sulina.spark.delta_source
import sulina.spark.rows
import sulina.spark.sink
import sulina.spark.source  # noqa: F401
from sulina.core.columns import decode_columns, encode_columns
from sulina.core.key_columns import column_partitions

ROWS = 256  # so many that kernels are worth it


def warm_up() -> None:
    """Use what has to be compiled, or loaded from where it was compiled to."""
    value = pa.array([b"x"] * ROWS, pa.binary())
    headers = pa.array([[("k", b"v")]] * ROWS, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    decode_columns(encode_columns(value=value, key=value, timestamp_ms=0, headers=headers))
    column_partitions(value, 2, 0)


if __name__ == "__main__":
    warm_up()
    manager()

"""Spark's Python daemon with everything that workers need already in memory: each is a fork of it, and begins at once.

`session()` sets it as `spark.python.daemon.module`. Without it a worker imports for two seconds, and loads kernels for
one more, each time that Spark has none to spare.
"""

import gc
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def leave_zip() -> None:
    """Import PySpark from where it is installed. Spark puts a zip with the same files first: it is parsed each time."""
    elsewhere = [entry for entry in sys.path if not entry.endswith(".zip")]
    found = PathFinder.find_spec("pyspark", elsewhere)
    if found is not None and found.origin is not None:
        home = Path(found.origin).parent
        sys.path[:] = [entry for entry in sys.path if not (entry.endswith(".zip") and home in Path(entry).parents)]


def load() -> None:
    """Import what workers use, and decode a record: the first use of a kernel loads what all of them need."""
    import pyspark.worker  # noqa: F401

    import sulina.client
    import sulina.spark.arrow_batches
    import sulina.spark.data_source
    import sulina.spark.delta_data_source
    import sulina.spark.key_columns
    import sulina.spark.sink  # noqa: F401
    from sulina.core.records.columns import decode_columns
    from sulina.core.records.record import StoredRecord, encode
    from sulina.core.records.serializer import TEXT_HEADERS

    decode_columns(encode([StoredRecord(b"value", b"key", headers=TEXT_HEADERS)]))


if __name__ == "__main__":
    leave_zip()
    load()
    from pyspark.daemon import manager

    gc.freeze()  # after each task a worker looks for garbage: among all of this, it took longer than the task

    manager()

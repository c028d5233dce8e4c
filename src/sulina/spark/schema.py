"""The columns of a topic, as Arrow has them and as Spark does."""

import pyarrow as pa

from sulina.core.records.record_columns import HEADERS_TYPE, ORIGIN_TYPE
from sulina.spark.value_schemas import ddl_of

RAW_SCHEMA = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("version", pa.int64()),  # null where the commit is no longer kept
        pa.field("origin", ORIGIN_TYPE),  # null where the producer did not say who it is
    ]
)
RAW_COLUMNS = tuple(RAW_SCHEMA.names)
DATA, ERROR = "data", "error"  # what a value decodes to, or why it does not
_DDL = {
    "namespace": "STRING NOT NULL",
    "topic": "STRING NOT NULL",
    "partition": "INT NOT NULL",
    "offset": "BIGINT NOT NULL",
    "timestamp": "TIMESTAMP NOT NULL",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "version": "BIGINT",
    "origin": "STRUCT<id: BIGINT, epoch: INT, sequence: BIGINT>",
}


def ddl(columns: tuple[str, ...]) -> str:
    """Return Spark's DDL for these columns, in this order."""
    return ", ".join(f"`{name}` {_DDL[name]}" for name in columns)


def data_ddl(kind: pa.StructType) -> str:
    """Return Spark's DDL for what values of this type are decoded to."""
    return f"`{DATA}` {ddl_of(kind)}, `{ERROR}` STRING"

"""The columns of a topic, as Arrow has them; `value_schemas.spark_type` gives Spark's type for them."""

import pyarrow as pa

from sulina.core.records.record_columns import HEADERS_TYPE, ORIGIN_TYPE

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

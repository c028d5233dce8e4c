"""Arrow types of the columns of records. Separate from `columns`, whose kernels take a second to import."""

import pyarrow as pa

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ORIGIN_TYPE = pa.struct([("id", pa.int64()), ("epoch", pa.int32()), ("sequence", pa.int64())])
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)

"""A Delta table as a DataFrame that Spark's own Parquet reader reads: the fastest way, and no jar."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sulina.errors import InvalidSettings
from sulina.spark.delta_log import TableFile, files_of, open_table, schema_of, snapshot
from sulina.spark.delta_partitions import is_hive
from sulina.spark.delta_schema import arrow_schema
from sulina.spark.table_location import TableLocation

FORMAT = "sulina-delta"
_GLOBS = set("*?[]{}\\")


def read_delta(
    spark: SparkSession,
    uri: str,
    version: int | None = None,
    timestamp: str | None = None,
    where: Mapping[str, Any] | None = None,
    endpoint: str | None = None,
) -> DataFrame:
    """Return the rows of a table, as of now or of a version or time (`2026-11-01T12:00:00Z`).

    `where` chooses by partition columns: `{"day": date(2026, 11, 1), "kind": ["a", None]}` reads the files of these
    values and no others. The files are those of one version, whatever is committed later.

    Spark's Parquet reader knows directories. For buckets it would need Hadoop's jars, and it would not find partition
    values of files that lie in other folders: then `format("sulina-delta")` reads the same version, through Python.

    Raises:
        TableNotFound: there is no table.
        VersionNotRetained: there is no such version, or no longer.
        TableUnsupported: it has a feature that this reader lacks.
        InvalidSettings: `where` names something that is not a partition column, or a value of another type.
    """
    location = TableLocation.parse(uri, endpoint)
    table = open_table(location, version=version, timestamp=timestamp)
    schema, columns = schema_of(table), tuple(table.metadata().partition_columns)
    found = snapshot(table)
    for name, wanted in (where or {}).items():
        found = found.filter(_mask(found, schema, columns, name, wanted))
    if not found.num_rows:
        return spark.createDataFrame([], schema)
    files = files_of(location, found, columns)
    if _is_native(location, files, columns):
        paths = [f"{location.directory}/{file.path}" for file in files]
        reader = spark.read.schema(schema).option("basePath", str(location.directory))
        return reader.parquet(*paths).select(*(_quoted(name) for name in schema.names))
    options = {"version": str(table.version()), **({"objectsEndpoint": endpoint} if endpoint else {})}
    frame = spark.read.format(FORMAT).options(**options).load(location.path_or_uri)
    for name, wanted in (where or {}).items():
        frame = _filtered(frame, name, wanted)
    return frame


def _mask(found: pa.Table, schema: StructType, columns: Sequence[str], name: str, wanted: Any) -> pa.ChunkedArray:
    known = {column.lower(): column for column in columns}
    if name.lower() not in known:
        raise InvalidSettings(
            f"where: {name} is not a partition column; the table has {', '.join(columns) or 'no partition columns'}"
        )
    column = known[name.lower()]
    kind = arrow_schema(schema).field(column).type
    try:
        values = pa.array(_wanted(wanted), kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidSettings(f"where: {wanted!r} is no {schema[column].dataType.simpleString()}: {error}") from error
    return pc.is_in(found.column(f"partition.{column}").cast(kind), value_set=values)


def _wanted(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]


def _filtered(frame: DataFrame, name: str, wanted: Any) -> DataFrame:
    values = _wanted(wanted)
    condition = frame[name].isin([value for value in values if value is not None])
    return frame.where(condition | frame[name].isNull() if None in values else condition)


def _is_native(location: TableLocation, files: Sequence[TableFile], columns: Sequence[str]) -> bool:
    if location.directory is None or _GLOBS & set(location.directory):
        return False
    return all(is_hive(file.path, columns, file.partition_values) for file in files)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"

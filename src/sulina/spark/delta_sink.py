"""Sink of Delta tables: `df.write.format("sulina-delta")` and `df.writeStream.format("sulina-delta")`.

Executors write files, the driver commits them: all rows of a write, or of a micro-batch, are one version of the table.
A batch that is replayed finds its version, and adds nothing. A micro-batch without rows makes no version.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sulina.errors import InvalidSettings
from sulina.spark.delta_files import TARGET_BYTES, NewFile, WritePlan, discard, write_files
from sulina.spark.delta_table import WriteTo, commit, plan_write
from sulina.spark.options import Options
from sulina.spark.table_location import TableLocation

WRITE_OPTIONS = (
    "path", "objectsEndpoint", "partitionColumns", "mergeSchema", "overwriteSchema", "targetFileBytes", "txn", "txnApp",
    "txnVersion",    "userMetadata", "checkpointLocation",
)  # fmt: skip
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class WrittenFiles(WriterCommitMessage):
    """The files of one task."""

    files: tuple[NewFile, ...]
    query: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a write to a table."""

    to: WriteTo
    plan: WritePlan
    txn: str | None
    txn_version: int
    txn_app: str | None

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool, is_stream: bool) -> "SinkOptions":
        """Read and check the options before any row is read.

        Raises:
            InvalidSettings: an option is unknown or wrong.
            TableSchemaConflict: the columns do not fit the table.
            TableUnsupported: the table has a feature that this writer lacks.
        """
        options = Options(given, WRITE_OPTIONS)
        unfit = "txn" if is_stream else "txnApp"
        if options.text(unfit) is not None:
            other = "txnApp" if is_stream else "txn"
            raise InvalidSettings(
                f"option {unfit} does not apply to a {'stream' if is_stream else 'write'}: set {other}"
            )
        to = WriteTo(
            location=TableLocation.parse(options.text("path"), options.text("objectsEndpoint")),
            schema=schema,
            partition_columns=options.names("partitionColumns"),
            overwrite=overwrite,
            merge_schema=options.flag("mergeSchema", otherwise=False),
            overwrite_schema=options.flag("overwriteSchema", otherwise=False),
            user_metadata=options.text("userMetadata"),
        )
        plan = plan_write(to, target_bytes=options.count("targetFileBytes") or TARGET_BYTES)
        return cls(
            to=to,
            plan=plan,
            txn=options.text("txn"),
            txn_version=int(options.text("txnVersion") or 0),
            txn_app=options.text("txnApp"),
        )


class DeltaWriter(DataSourceArrowWriter):
    """One `df.write`. With the option `txn`, writing under the same name again adds nothing."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        return WrittenFiles(tuple(write_files(self._options.plan, iterator)), None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options.to, _files(messages), app=self._options.txn, version=self._options.txn_version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _give_up(self._options, messages)


class DeltaStreamWriter(DataSourceStreamArrowWriter):
    """One `df.writeStream`, batch after batch. With output mode `complete`, each batch replaces the table's rows."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        return WrittenFiles(tuple(write_files(self._options.plan, iterator)), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit one micro-batch, as (query, batch).

        Raises:
            InvalidSettings: neither Spark nor an option names the query.
            TableFailed: the commit could not be written.
        """
        files = _files(messages)
        if not files and not self._options.to.overwrite:
            return
        queries = {message.query for message in messages if isinstance(message, WrittenFiles) and message.query}
        app = self._options.txn_app or min(queries, default=None)
        if app is None:
            raise InvalidSettings("Spark did not name the query: set option txnApp, to another value for each query")
        commit(self._options.to, files, app=app, version=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _give_up(self._options, messages)


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[NewFile]:
    return [file for message in messages if isinstance(message, WrittenFiles) for file in message.files]


def _give_up(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Delete the files of tasks if no commit was tried; if one was, it may yet appear, and they stay."""
    if any(message is None for message in messages):
        discard(options.to.location, _files(messages))

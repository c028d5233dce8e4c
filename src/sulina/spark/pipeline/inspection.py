"""What the tables of a pipeline hold, without Spark: from their logs, and from the positions that it registered."""

import msgspec

from sulina.errors import SulinaError
from sulina.spark.clients import client_of
from sulina.spark.delta_log import find_table, snapshot
from sulina.spark.pipeline.definition import Bronze, Pipeline, Table
from sulina.spark.table_location import TableLocation


class TableState(msgspec.Struct, kw_only=True):
    """One table as it is now."""

    table: str
    stage: str
    uri: str
    version: int | None = None  # None: it was not made yet
    rows: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    changed_ms: int | None = None
    lag: int | None = None  # records of its topics that it does not have yet; None: that is not known


def inspect(pipeline: Pipeline) -> list[TableState]:
    """Return the state of all tables, quarantine tables included."""
    found = [_state(pipeline, one.table, type(one).__name__.lower(), one) for one in pipeline.all_tables]
    found += [_state(pipeline, one.quarantine_table, "quarantine", None) for one in pipeline.silver]
    return found


def _state(pipeline: Pipeline, name: str, stage: str, one: Table | None) -> TableState:
    uri = pipeline.table_uri(name)
    state = TableState(table=name, stage=stage, uri=uri)
    table = find_table(TableLocation.parse(uri))
    if table is None:
        return state
    files = snapshot(table)
    state.version, state.files = table.version(), files.num_rows
    state.size_bytes = sum(files.column("size_bytes").to_pylist())
    state.rows = sum(count or 0 for count in files.column("num_records").to_pylist())
    for entry in table.history(1):
        state.changed_ms = entry.get("timestamp")
    if isinstance(one, Bronze):
        state.lag = _lag(pipeline, one)
    return state


def _lag(pipeline: Pipeline, bronze: Bronze) -> int | None:
    if pipeline.url is None:
        return None
    try:
        readers = client_of(pipeline.url).admin.readers()
    except SulinaError:
        return None  # nobody is there to ask
    mine = [reader for reader in readers if reader.reader == f"{pipeline.name}.{bronze.table}"]
    lags = [reader.lag for reader in mine]
    return sum(lag for lag in lags if lag is not None) if mine and None not in lags else None

"""Definition of a pipeline: topics become bronze tables, bronze ones silver, and silver ones gold.

Read from `pipeline.toml`, or made in Python; checked whole before anything runs.

- A bronze table has the records of topics as they are, each once.
- A silver table has what a bronze one holds, decoded and held to expectations. What does not fit is dropped, put aside
  with its offset and the reason, or ends the run.
- A gold table is the answer to a question in SQL, asked of silver and bronze tables.
"""

import re
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields

from sulina.core.formats import PIPELINE
from sulina.core.log.position import Position
from sulina.core.nearest import did_you_mean, nearest
from sulina.errors import InvalidName, InvalidSettings
from sulina.json_values import convert_to
from sulina.spark.found_columns import schema_of_columns
from sulina.spark.scan import TopicChoice

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
TABLES_MAX = 200
DECODINGS = ("schema", "json", "raw")
EXPECTATIONS_MAX = 100

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class Otherwise(StrEnum):
    """What happens to a row that does not meet an expectation."""

    DROP = "drop"
    QUARANTINE = "quarantine"
    FAIL = "fail"


class GoldMode(StrEnum):
    """How the rows of a gold query become a table."""

    COMPLETE = "complete"  # the query runs again over all rows when there are new ones, and the table is replaced
    APPEND = "append"  # the query runs over new rows only; windows are added once the watermark has passed


class Watermark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How late rows may come, by a column that has their time."""

    column: str
    delay: str  # in Spark's words: "10 minutes"


class Expectation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition in SQL that every good row meets."""

    name: str
    that: str
    otherwise: Otherwise = Otherwise.QUARANTINE


class Bronze(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bronze table: the records of topics, as they are."""

    table: str
    topic: str
    start: str = "earliest"
    partition_by: list[str] = []
    rows_per_batch_max: Annotated[int, Meta(ge=1)] | None = None
    fail_on_data_loss: bool = True  # False: go on where the log does after some was removed or given up


class Silver(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A silver table: the records of a bronze table, decoded, checked, and each once."""

    table: str
    source: str = msgspec.field(name="from")
    decode: str = "schema"  # by the schema of the topic; json: by `columns`; raw: not at all
    columns: dict[str, str] = {}  # with json: names and types of `found_columns`
    sql: str | None = None  # over `input`: the decoded rows
    quarantine: str | None = None  # the table of what does not fit; None: {table}_quarantine
    expect: list[Expectation] = []
    deduplicate: list[str] = []  # columns that make a row the same as another
    watermark: Watermark | None = None
    partition_by: list[str] = []

    @property
    def quarantine_table(self) -> str:
        return self.quarantine or f"{self.table}_quarantine"


class Gold(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gold table: the rows of a query over other tables."""

    table: str
    sql: str
    mode: GoldMode = GoldMode.COMPLETE
    source: str | None = msgspec.field(default=None, name="from")  # with append: the table whose new rows are read
    watermark: Watermark | None = None
    partition_by: list[str] = []


Table = Bronze | Silver | Gold


class Pipeline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The definition of a pipeline. `tables` and `checkpoints` are directories or URLs of an object store."""

    name: str
    tables: str
    url: str | None = None  # of a broker
    path: str | None = None  # or where topics lie
    checkpoints: str | None = None  # None: beside the tables
    trigger_seconds: Seconds = 0.5
    progress_topic: str | None = "/system/pipelines"
    bronze: list[Bronze] = []
    silver: list[Silver] = []
    gold: list[Gold] = []
    settings: dict[str, str] = {}  # of Spark

    @property
    def checkpoint_root(self) -> str:
        return self.checkpoints or f"{self.tables.rstrip('/')}/_checkpoints/{self.name}"

    @property
    def topic_options(self) -> dict[str, str]:
        """The options of Spark's source that name the location of topics."""
        return {"url": self.url} if self.url else {"path": str(self.path)}

    @property
    def growing(self) -> list[Gold]:
        """Gold tables that have queries of their own, which add rows."""
        return [gold for gold in self.gold if gold.mode == GoldMode.APPEND]

    @property
    def complete(self) -> list[Gold]:
        """Gold tables that are made again when a table that they read has changed."""
        return [gold for gold in self.gold_in_order if gold.mode == GoldMode.COMPLETE]

    @property
    def gold_in_order(self) -> list[Gold]:
        """Gold tables, each after those that its SQL names.

        A column may have the name of a table. So in a circle only names behind `from` and `join` count.
        """
        left = {gold.table: gold for gold in self.gold}
        named = {gold.table: set(self.sources_of(gold)) for gold in self.gold}
        read = {gold.table: {name.lower() for name in _tables_read(gold.sql)} - {gold.table} for gold in self.gold}
        ordered = []
        while left:
            ready = (name for sources in (named, read) for name in left if not sources[name] & left.keys())
            ordered.append(left.pop(next(ready, next(iter(left)))))
        return ordered

    def table_uri(self, table: str) -> str:
        """Return where a table is."""
        return f"{self.tables.rstrip('/')}/{table}"

    @property
    def all_tables(self) -> list[Table]:
        """Return all tables, in the order in which they are made."""
        return [*self.bronze, *self.silver, *self.gold]

    @property
    def names(self) -> list[str]:
        """The name of every table, quarantine tables included."""
        return [*(one.table for one in self.all_tables), *(one.quarantine_table for one in self.silver)]

    def sources_of(self, gold: Gold) -> list[str]:
        """Return the tables of this pipeline that the SQL of a gold table names."""
        return [name for name in self.names if name != gold.table and re.search(rf"\b{name}\b", gold.sql)]

    def find(self, table: str) -> Table:
        """Return how a table is made.

        Raises:
            InvalidSettings: the pipeline does not make it.
        """
        for one in self.all_tables:
            if one.table == table:
                return one
        raise InvalidSettings(f"pipeline {self.name} makes no table {table}{did_you_mean(table, self.names)}")

    def bronze_of(self, table: str) -> Bronze:
        """Return the bronze table that a bronze or silver one comes from.

        Raises:
            InvalidSettings: it is gold.
        """
        found = self.find(table)
        if isinstance(found, Silver):
            return self.bronze_of(found.source)
        if isinstance(found, Gold):
            raise InvalidSettings(f"{table} is a gold table, which has no single source table")
        return found


_UNKNOWN_KEY = re.compile("unknown field `([^`]+)`")
_KEYS = sorted(
    {one.encode_name for kind in (Pipeline, Bronze, Silver, Gold, Expectation, Watermark) for one in fields(kind)}
)


def load(path: str | Path) -> Pipeline:
    """Read and check a file.

    Raises:
        InvalidSettings: it cannot be read, or something in it is wrong; it says what and where.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        near = nearest(Path(path).name, [one.name for one in Path(path).parent.glob("*.toml")])
        hint = f"; did you mean {near}?" if near else ""
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}{hint}") from None
    return parse_text(text, path)


def parse_text(text: str, path: str | Path) -> Pipeline:
    """Make a definition from the text of a file, and check it.

    Raises:
        InvalidSettings: something in it is wrong; it says what and where.
    """
    try:
        return parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"{path} is not TOML: {error}") from None
    except InvalidSettings as error:
        raise InvalidSettings(f"{path}: {error}") from None


def parse(given: dict[str, Any]) -> Pipeline:
    """Make a definition from what TOML or Python has, and check everything that can be known without running it.

    Raises:
        InvalidSettings: something in it is wrong.
        NewerFormat: it is for a newer version of Sulina.
    """
    given = dict(given)
    number = given.pop("format", 1)
    if not isinstance(number, int) or number < 1:
        raise InvalidSettings(f"format is the number of the file's format, {PIPELINE.number} or less, not {number!r}")
    PIPELINE.check(number, "this pipeline")
    try:
        pipeline = convert_to(given, Pipeline)
    except msgspec.ValidationError as error:
        raise InvalidSettings(_validation_text(error)) from None
    if (pipeline.url is None) == (pipeline.path is None):
        raise InvalidSettings("set either url (of a broker) or path (of an archive or a data directory), not both")
    _check_names(pipeline)
    for bronze in pipeline.bronze:
        try:
            TopicChoice.parse(bronze.topic)
        except InvalidName as error:
            raise InvalidSettings(f"bronze table {bronze.table}: {error}") from None
        if not bronze.start.lstrip().startswith("{"):
            Position.parse(bronze.start)
    bronze_names = {one.table for one in pipeline.bronze}
    for silver in pipeline.silver:
        _check_silver(silver, bronze_names)
    sources = bronze_names | {one.table for one in pipeline.silver}
    for gold in pipeline.gold:
        _check_gold(gold, sources)
        if not pipeline.sources_of(gold) and (misspelt := _misspelt(pipeline, gold)) is not None:
            word, near = misspelt  # with any other name it may read views and tables that only Spark knows
            raise InvalidSettings(
                f"gold table {gold.table}: its sql reads no table of the pipeline, but {word}; did you mean {near}?"
            )
        if gold.mode == GoldMode.APPEND:
            _check_one_source(pipeline, gold)
    return pipeline


def _validation_text(error: msgspec.ValidationError) -> str:
    """Return what is wrong and where, with the key that an unknown one is most like."""
    text = str(error).replace("`$.", "`").replace("`$`", "the pipeline")
    unknown = _UNKNOWN_KEY.search(text)
    near = nearest(unknown[1], _KEYS) if unknown else None
    return text if near is None else f"{text}; did you mean {near}?"


def _check_names(pipeline: Pipeline) -> None:
    names = pipeline.names
    if not pipeline.bronze:
        raise InvalidSettings("a pipeline has at least one bronze table: [[bronze]] with table and topic")
    if len(names) > TABLES_MAX:
        raise InvalidSettings(f"a pipeline has {TABLES_MAX} tables at most")
    for name in (pipeline.name, *names):
        if not NAME.fullmatch(name):
            raise InvalidSettings(
                f"{name!r} is not a valid name: use small letters, digits and _, a letter first, at most 63 characters"
            )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidSettings(f"table {twice} is made twice")


def _misspelt(pipeline: Pipeline, gold: Gold) -> tuple[str, str] | None:
    """Return a word of the SQL and the table that it is most like; None: it is like none."""
    names = [name for name in pipeline.names if name != gold.table]
    for word in _tables_read(gold.sql):
        if (near := nearest(word, names)) is not None:
            return word, near
    return None


def _tables_read(sql: str) -> list[str]:
    """Return the names behind `from` and `join` that the SQL does not define itself."""
    defined = {name.lower() for name in re.findall(r"(?i)`?\b(\w+)`?\s+as\s*\(", sql)}
    return [name for name in re.findall(r"(?i)\b(?:from|join)\s+`?(\w+)", sql) if name.lower() not in defined]


def _check_one_source(pipeline: Pipeline, gold: Gold) -> None:
    """Check that a gold table that grows reads no other table of the pipeline.

    Raises:
        InvalidSettings: it does, and new rows of that one would never be joined with rows that were read before.
    """
    for name in _tables_read(gold.sql):
        if name.lower() in pipeline.names and name.lower() != gold.source:
            raise InvalidSettings(
                f"gold table {gold.table}: mode append reads the new rows of {gold.source} only, and its sql reads "
                f"{name} too: use mode = 'complete', or take {name} out of the sql"
            )


def _check_silver(silver: Silver, bronze: set[str]) -> None:
    where = f"silver table {silver.table}"
    if silver.source not in bronze:
        near = did_you_mean(silver.source, sorted(bronze))
        raise InvalidSettings(f"{where}: the pipeline has no bronze table {silver.source!r}{near}")
    if silver.decode not in DECODINGS:
        raise InvalidSettings(f"{where}: decode is one of {', '.join(DECODINGS)}, not {silver.decode!r}")
    if silver.decode == "json":
        try:
            schema_of_columns(silver.columns)
        except InvalidSettings as error:
            raise InvalidSettings(f"{where}: {error}") from None
    elif silver.columns:
        raise InvalidSettings(f"{where}: columns need decode = 'json', not {silver.decode!r}")
    if len(silver.expect) > EXPECTATIONS_MAX:
        raise InvalidSettings(f"{where}: {EXPECTATIONS_MAX} expectations at most")
    names = [one.name for one in silver.expect]
    if len(set(names)) < len(names):
        raise InvalidSettings(f"{where}: two expectations have one name")
    if silver.deduplicate and silver.watermark is None:
        raise InvalidSettings(f"{where}: deduplicate needs a watermark, or it would remember every row for ever")


def _check_gold(gold: Gold, sources: set[str]) -> None:
    where = f"gold table {gold.table}"
    if gold.mode == GoldMode.APPEND and (gold.source is None or gold.watermark is None):
        raise InvalidSettings(f"{where}: mode append needs from (a table) and a watermark")
    if gold.source is not None and gold.source not in sources:
        near = did_you_mean(gold.source, sorted(sources))
        raise InvalidSettings(f"{where}: the pipeline has no table {gold.source!r} to read from{near}")

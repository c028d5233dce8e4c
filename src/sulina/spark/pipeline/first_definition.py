"""The first definition of a pipeline: what `sulina pipeline init` writes, from what a node has.

A bronze table for each topic; a silver one where values have a schema, or are JSON objects; one gold table that shows
how rows are counted. It runs as it is, and says in comments what it was made from. Nothing here asks anything.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidSettings
from sulina.spark.found_columns import FoundColumns, find_columns
from sulina.spark.misfits import short
from sulina.spark.value_schemas import arrow_schema
from sulina.types import TopicName

TOPICS_MAX = 20
NAME_LENGTH_MAX = 40  # with _quarantine behind it, and a number where another table has the name, it is a table's name
_LISTED_MAX = 10  # names in one comment
# A table of such a name would be taken for a word of the gold table's query.
_QUERY_WORDS = {"select", "count", "as", "records", "from", "group", "by", "date_trunc", "hour", "timestamp", "number"}
_SQL_WORDS = {
    "all", "and", "anti", "as", "between", "by", "case", "cross", "distinct", "else", "end", "except", "exists",
    "false", "from", "full", "group", "having", "in", "inner", "intersect", "interval", "is", "join", "lateral",
    "left", "like", "limit", "minus", "natural", "not", "null", "on", "or", "order", "outer", "right", "select",
    "semi", "set", "table", "then", "true", "union", "using", "values", "when", "where", "with",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicSample:
    """What is known of a topic."""

    name: TopicName
    schema: Schema
    values: Sequence[bytes | None] = ()  # some of the oldest and newest, where it has no schema
    trouble: str | None = None  # why it could not be looked at


@dataclass(frozen=True, slots=True)
class NodeSample:
    """What is known of the topics of a node."""

    topics: Sequence[TopicSample]
    best_effort: Sequence[TopicName] = ()  # they store nothing
    beyond: Sequence[TopicName] = ()  # more than TOPICS_MAX


@dataclass(slots=True)
class _Definition:
    lines: list[str]
    taken: set[str] = field(default_factory=set)  # names of tables

    def name(self, topic: TopicName) -> str:
        """Return a name for the tables of a topic, which no other table has."""
        text = topic.topic if topic.namespace == "default" else f"{topic.namespace}_{topic.topic}"
        base = table_name(text)
        name, number = base, 1
        while self.taken & {name, f"{name}_raw", f"{name}_quarantine"}:
            number += 1
            name = f"{base}_{number}"
        self.taken |= {name, f"{name}_raw", f"{name}_quarantine"}
        return name

    def add(self, *lines: str) -> None:
        self.lines.extend(lines)

    def set(self, key: str, value: str, comment: str | None = None) -> None:
        line = f"{key} = {toml_text(value)}"
        self.lines.append(f"{line:<30} # {short(comment)}" if comment else line)

    def table(self, header: str, comment: str) -> None:
        self.add("", f"{header:<30} # {short(comment)}")


def first_definition(node: NodeSample, *, url: str, name: str, file: str = "pipeline.toml") -> str:
    """Return the text of a definition.

    Raises:
        InvalidSettings: there is no topic that stores records.
    """
    if not node.topics:
        only = (
            f", only best-effort ones, which store no records: {_listed(node.best_effort)}" if node.best_effort else ""
        )
        raise InvalidSettings(f"the node at {url} has no topic to make tables of{only}")
    found = {sample.name: find_columns(sample.values) for sample in node.topics}
    grouped = next((sample for sample in node.topics if found[sample.name].groups is not None), None)
    groups = found[grouped.name].groups if grouped is not None else None
    text = _Definition([])
    text.taken |= _QUERY_WORDS | ({groups.lower()} if groups is not None else set())
    text.add(
        "# Topics become tables. Written by `sulina pipeline init` from what the topics have now: edit it as you like.",
        f"# docs/guides/spark.md describes every word. To run it: sulina pipeline run {short(file)} --once",
    )
    text.set("name", name, "unique among the pipelines that read these topics")
    text.set("url", url, "of a broker")
    text.set("tables", "./tables", "a directory, or s3://bucket/prefix")
    if node.best_effort:
        text.add("", f"# Left out, because best-effort topics store no records: {_listed(node.best_effort)}")
    if node.beyond:
        text.add("", f"# Left out, because only {TOPICS_MAX} topics are written here: {_listed(node.beyond)}")
    tables: dict[TopicName, str] = {}
    silver: list[TopicName] = []
    for sample in node.topics:
        tables[sample.name] = text.name(sample.name)
        if _add_topic(text, sample, tables[sample.name], found[sample.name]):
            silver.append(sample.name)
    if grouped is not None and groups is not None:
        _add_gold(text, tables[grouped.name], groups)
    elif silver:
        _add_gold(text, tables[silver[0]], None)
    else:
        _add_gold(text, f"{tables[node.topics[0].name]}_raw", None, time="timestamp")
    return "\n".join(text.lines) + "\n"


def _add_topic(text: _Definition, sample: TopicSample, table: str, found: FoundColumns) -> bool:
    """Add the tables of one topic; return whether it has a silver one."""
    text.table("[[bronze]]", f"the records of {sample.name}, as they are")
    text.set("table", f"{table}_raw")
    text.set("topic", str(sample.name))
    if sample.trouble is not None:
        text.add(f"# No silver table: {short(sample.trouble)}")
        return False
    if sample.schema.kind != SchemaKind.BYTES:
        try:
            arrow_schema(sample.schema)
        except InvalidSettings as error:
            text.add(f"# No silver table: {short(str(error))}")
            return False
        text.table(
            "[[silver]]", f"values by the topic's schema ({sample.schema.kind}); misfits go to {table}_quarantine"
        )
        text.set("table", table)
        text.set("from", f"{table}_raw")
        return True
    if not found.columns:
        said = f"none of {found.values} values is a JSON object with columns" if found.values else "it has no records"
        text.add(f"# No silver table: the topic has no schema, and {said}")
        return False
    text.table("[[silver]]", f"values that are JSON objects; others go to {table}_quarantine, with the reason")
    text.set("table", table)
    text.set("from", f"{table}_raw")
    text.set("decode", "json", "the topic has no schema, so the columns are here")
    text.add(
        "", f"# Found in {found.objects} of {found.values} values, the oldest and newest: check them, and edit them."
    )
    text.add(
        "# Types: bigint, double, boolean, string, timestamp, date, json (anything, as text). Other properties: _rest"
    )
    if found.left_out:
        text.add(f"# Only in _rest: {_listed(found.left_out)}")
    text.add("[silver.columns]")
    for name, kind in found.columns.items():
        text.add(f"{name if re.fullmatch('[A-Za-z0-9_]+', name) else toml_text(name)} = {toml_text(kind)}")
    return True


def _add_gold(text: _Definition, source: str, column: str | None, *, time: str = "_timestamp") -> None:
    text.table("[[gold]]", "the answer to a query, computed again when there are new rows: yours instead of this one")
    table, number = table_name(f"{source}_by_{column or 'hour'}"), 1
    while (name := table if number == 1 else f"{table}_{number}") in text.taken:
        number += 1
    text.taken.add(name)
    by = _quoted(column) if column is not None else f"date_trunc('hour', {time}) as hour"
    text.set("table", name)
    count = "records" if column != "records" else "number"
    text.set("sql", f"select {by}, count(*) as {count} from {source} group by 1")


def table_name(text: str) -> str:
    """Return a name of a table, as like a text as it can be."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:NAME_LENGTH_MAX].strip("_")
    return name if re.match("[a-z]", name) else f"t_{name}".rstrip("_")


def toml_text(text: str) -> str:
    """Return a text as TOML writes it."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def _quoted(column: str) -> str:
    is_plain = re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", column) is not None and column.lower() not in _SQL_WORDS
    return column if is_plain else f"`{column}`"


def _listed(names: Sequence[object]) -> str:
    """Return some names, and how many more there are, on one line."""
    shown = ", ".join(short(str(name)) for name in names[:_LISTED_MAX])
    return shown if len(names) <= _LISTED_MAX else f"{shown} and {len(names) - _LISTED_MAX} more"

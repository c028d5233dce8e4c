"""Checks of a pipeline before Spark starts: its topics, their schemas, its folders, and the columns it names.

Everything here is a question to the node or a look at a folder, so it is answered in a moment. What only Spark can
check, which is SQL, `Stages.check_queries` checks before the first row is read.
"""

import os
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from sulina.core.nearest import did_you_mean, nearest_topic
from sulina.errors import InvalidSettings, NotReliable, TopicNotFound
from sulina.spark.clients import client_of
from sulina.spark.log_catalogue import open_catalogue
from sulina.spark.options import LogLocation
from sulina.spark.pipeline.definition import Bronze, Gold, Pipeline, Silver
from sulina.spark.pipeline.silver import INPUT_COLUMNS, RAW_INPUT_COLUMNS
from sulina.spark.pipeline.stages import anywhere, check_begun
from sulina.spark.pipeline.value_schema import values_schema
from sulina.spark.scan import TopicChoice
from sulina.spark.schema import RAW_COLUMNS
from sulina.spark.value_schemas import arrow_schema


def check(given: Pipeline) -> None:
    """Check everything that can be known without Spark.

    Raises:
        InvalidSettings: a topic, a schema, a column or a folder is not there, or cannot be used.
        Disconnected: no broker answers.
    """
    pipeline = anywhere(given)
    _check_folder("tables", pipeline.tables)
    if pipeline.path is not None and "://" not in pipeline.path and not os.path.isdir(pipeline.path):
        raise InvalidSettings(f"path {pipeline.path} is not a folder: name an archive or a data directory")
    for bronze in pipeline.bronze:
        _check_bronze(pipeline, bronze)
    for silver in pipeline.silver:
        _check_silver(pipeline, silver)
    complete = pipeline.complete  # which have no checkpoint
    for table in pipeline.all_tables:
        if table not in complete:
            check_begun(pipeline, table)


def check_table(given: Pipeline, table: str, *, is_log_read: bool) -> None:
    """Check what the repair of one table needs: whether and how other tables go on makes no difference to it.

    Raises:
        InvalidSettings: its topic, its schema or the folder is not there, or cannot be used.
        Disconnected: no broker answers.
    """
    pipeline = anywhere(given)
    _check_folder("tables", pipeline.tables)
    made = pipeline.find(table)
    if is_log_read and not isinstance(made, Gold):
        _check_bronze(pipeline, pipeline.bronze_of(table))
    if isinstance(made, Silver):
        _check_silver(pipeline, made)


def _check_folder(what: str, uri: str) -> None:
    """Check that tables can be made in a folder.

    Raises:
        InvalidSettings: it is a file, is below one, or nobody may write there.
    """
    path = unquote(urlsplit(uri).path) if uri.startswith("file://") else uri
    if "://" in path:
        return
    while not os.path.lexists(path):
        path = os.path.dirname(path) or "."
    if not os.path.isdir(path):
        raise InvalidSettings(f"{what} = {uri!r} needs a folder, and {path} is a file: name another folder")
    if not os.access(path, os.W_OK | os.X_OK):
        raise InvalidSettings(f"{what} = {uri!r} cannot be written, {path} is read-only: name another folder")


def _check_bronze(pipeline: Pipeline, bronze: Bronze) -> None:
    where = f"pipeline {pipeline.name}, bronze table {bronze.table}"
    location = LogLocation(url=pipeline.url, path=pipeline.path, objects=None, objects_endpoint=None)
    try:
        open_catalogue(location, TopicChoice.parse(bronze.topic)).partitions()
    except TopicNotFound as error:
        raise InvalidSettings(f"{where}: {error}{_near_topic(pipeline, error.topic)}") from None
    except NotReliable as error:
        raise InvalidSettings(f"{where}: {error}") from None
    _check_columns(where, "partition_by", bronze.partition_by, RAW_COLUMNS)


def _near_topic(pipeline: Pipeline, wanted: str) -> str:
    if pipeline.url is None:
        return ""
    near = nearest_topic(wanted, [info.topic for info in client_of(pipeline.url).admin.topics()])
    return f"; did you mean {near}?" if near else f"; create it with `sulina topic create {wanted}`"


def _check_silver(pipeline: Pipeline, silver: Silver) -> None:
    where = f"pipeline {pipeline.name}, silver table {silver.table}"
    if silver.decode == "raw":
        columns = RAW_INPUT_COLUMNS
    else:
        schema = values_schema(pipeline, silver)
        try:
            columns = (*arrow_schema(schema).names, *INPUT_COLUMNS)
        except InvalidSettings as error:
            raise InvalidSettings(f"{where}: {error}") from None
    _check_columns(where, "deduplicate", silver.deduplicate, columns)
    if silver.watermark is not None:
        _check_columns(where, "watermark", [silver.watermark.column], columns)
    if silver.sql is None:  # else the columns are those of its answer
        _check_columns(where, "partition_by", silver.partition_by, columns)


def _check_columns(where: str, what: str, named: Sequence[str], known: Sequence[str]) -> None:
    """Check that columns are there; Spark takes them in capitals too.

    Raises:
        InvalidSettings: one is not.
    """
    small = {name.lower() for name in known}
    for name in named:
        plain = name.strip("`").lower()
        if plain not in small and plain.partition(".")[0] not in small:
            shown = [column for column in known if not column.startswith("_")]
            raise InvalidSettings(
                f"{where}: {what} names column {name!r}, which is not there{did_you_mean(name, shown)}"
            )

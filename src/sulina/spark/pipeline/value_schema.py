"""The schema by which a silver table decodes values. It is asked of the node, and needs no Spark."""

from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidSettings
from sulina.spark.found_columns import schema_of_columns
from sulina.spark.log_catalogue import common_schema, open_catalogue
from sulina.spark.options import LogLocation
from sulina.spark.pipeline.definition import Pipeline, Silver
from sulina.spark.scan import TopicChoice
from sulina.spark.value_schemas import arrow_schema


def values_schema(pipeline: Pipeline, silver: Silver) -> Schema:
    """Return the schema of the values of a silver table.

    Raises:
        InvalidSettings: the topics have no schema or several, or values of it make no columns.
    """
    if silver.decode == "json":
        return schema_of_columns(silver.columns)
    topic = pipeline.bronze_of(silver.source).topic
    location = LogLocation(url=pipeline.url, path=pipeline.path, objects=None, objects_endpoint=None)
    try:
        schema = common_schema(open_catalogue(location, TopicChoice.parse(topic)))
        if schema.kind != SchemaKind.BYTES:
            arrow_schema(schema)
            return schema
    except InvalidSettings as error:
        raise InvalidSettings(f"silver table {silver.table} of {topic}: {error}") from None
    raise InvalidSettings(
        f"silver table {silver.table}: topic {topic} has no schema to decode its values by. State their columns "
        f"(decode = 'json' with [silver.columns], as `sulina pipeline init` writes them), leave values as they are "
        f"(decode = 'raw'), or remove the table from the definition"
    )

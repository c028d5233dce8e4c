"""What is told of an error of Spark: one sentence, without codes, plans and traces."""

import pytest
from pyspark.errors import AnalysisException

from sulina.errors import TopicNotFound
from sulina.spark.errors import PipelineFailed, SparkFailed, failing, own_errors, said, sentence

# As Spark 4 writes them, plans shortened.
COLUMN = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `amuont` cannot be "
    "resolved. Did you mean one of the following? [`amount`, `country`, `_offset`]. SQLSTATE: 42703; line 1 pos 19;\n"
    "'Aggregate ['sum('amuont) AS revenue#1]\n+- SubqueryAlias orders\n"
)
ALONE = (
    "[UNRESOLVED_COLUMN.WITHOUT_SUGGESTION] A column, variable, or function parameter with name `x` cannot be resolved."
)
TABLE = (
    "[TABLE_OR_VIEW_NOT_FOUND] The table or view `ordrs` cannot be found. Verify the spelling and correctness of the "
    "schema and catalog.\nIf you did not qualify the name with a schema, verify the current_schema() output.\n"
    "SQLSTATE: 42P01; line 1 pos 14;\n'Project [*]\n"
)
SYNTAX = (
    "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'country'. SQLSTATE: 42601 (line 1, pos 6)\n\n== SQL ==\n"
    "selct country from orders\n------^^^\n"
)
ROUTINE = "[UNRESOLVED_ROUTINE] Cannot resolve routine `summ` on search path [`system`]. SQLSTATE: 42883; line 1 pos 7"
STREAM = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: " + COLUMN
OURS = "Py4JJavaError: …\nsulina.errors.TopicNotFound: there is no topic /default/ordrs\n\tat java.base/…"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (COLUMN, "there is no column amuont; did you mean amount?"),
        (STREAM, "there is no column amuont; did you mean amount?"),
        (ALONE, "there is no column x"),
        (TABLE, "there is no table ordrs"),
        (SYNTAX, "Syntax error at or near 'country', in line 1 at character 7 of the SQL"),
        (ROUTINE, "there is no function summ"),
        ("java.lang.OutOfMemoryError: heap\n\tat x.y", "java.lang.OutOfMemoryError: heap"),
    ],
)
def test_an_error_of_spark_is_one_sentence(text: str, told: str) -> None:
    assert sentence(text) == told


def test_an_error_of_ours_behind_it_is_told_as_it_is() -> None:
    assert said(Exception(OURS)) == (TopicNotFound, "there is no topic /default/ordrs")


def test_a_failure_names_pipeline_and_table_and_the_near_name() -> None:
    with pytest.raises(PipelineFailed) as failed, failing("shop", "revenue", ["orders_raw", "orders"]):
        raise AnalysisException(TABLE)
    assert str(failed.value) == "pipeline shop: table revenue: there is no table ordrs; did you mean orders?"


def test_a_command_tells_an_error_of_spark_as_its_own() -> None:
    with pytest.raises(SparkFailed) as failed, own_errors():
        raise AnalysisException(COLUMN)
    assert str(failed.value) == "Spark failed: there is no column amuont; did you mean amount?"
    with pytest.raises(TopicNotFound, match="there is no topic /default/ordrs"), own_errors():
        raise AnalysisException(OURS)

"""Command `sulina audit`: a Spark job that checks a topic's log, and that a table equals it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sulina.cli import terminal
from sulina.cli.flags.remote import DEFAULT_URL, near_topic, topic_name
from sulina.errors import InvalidSettings, TopicNotFound
from sulina.spark.errors import SparkUnavailable
from sulina.types import TopicName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sulina.spark.audit_checks import AuditReport, PartitionAudit
    from sulina.spark.options import LogLocation

FOUND = 1
FINDINGS_SHOWN_MAX = 50
URL_VARIABLE = "SULINA_URL"
COLUMNS = (
    "partition",
    "first",
    "next",
    "records",
    "not read",
    "versions",
    "table",
    "begins",
    "behind",
    "forgotten",
    "ahead",
)
SparkLogs = Annotated[bool, Parameter(negative="", help="Show what Spark and Java log, warnings included.")]
TABLE_HELP = (
    "Delta table to compare with the log. A bronze table must equal the log from its first row to its newest; each row "
    "of a silver table must belong to a record, and no two rows to the same one."
)
RARE = ("not read", "begins", "behind", "forgotten", "ahead")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlags:
    """The options that name the log to audit."""

    url: Annotated[str | None, Parameter(env_var=URL_VARIABLE, help="URL of the node.", show_default=DEFAULT_URL)] = (
        None
    )
    path: Annotated[
        str | None,
        Parameter(
            help="Read an archive (s3://…, gs://…, az://…, file:///… or a folder) or a data directory instead of a "
            "node."
        ),
    ] = None
    objects: Annotated[
        str | None,
        Parameter(help="Archive to read instead of the node's own; `none` reads everything from the node."),
    ] = None
    objects_endpoint: Annotated[
        str | None, Parameter(help="Endpoint URL of the object store if it is not the cloud's own.")
    ] = None

    def check(self) -> None:
        """Check that the options name one log; a URL from the environment does not count.

        Raises:
            InvalidSettings: both --url and --path are given.
        """
        if self.path is not None and self.url is not None and self.url != os.environ.get(URL_VARIABLE):
            raise InvalidSettings("--url (a node) and --path (an archive or a data directory) exclude each other")

    def location(self) -> "LogLocation":
        """Return the location in the form that the data source takes."""
        from sulina.spark.options import LogLocation

        url = None if self.path is not None else self.url or DEFAULT_URL
        return LogLocation(url=url, path=self.path, objects=self.objects, objects_endpoint=self.objects_endpoint)


AT_NODE = LogFlags()  # the default; cyclopts fills in what was given


def audit(
    topic: str,
    /,
    *,
    source: LogFlags = AT_NODE,
    table: Annotated[str | None, Parameter(help=TABLE_HELP)] = None,
    quarantine: str | None = None,
    complete: bool = False,
    from_first: bool = False,
    range_offsets: int = 100_000,
    master: Annotated[str | None, Parameter(env_var="SPARK_MASTER")] = None,
    remote: Annotated[str | None, Parameter(env_var="SPARK_REMOTE")] = None,
    spark_logs: SparkLogs = False,
    json: bool = False,
) -> int:
    """Check that every offset exists once, checksums match, versions have no gap, and a table equals the log.

    Exit code 0 if everything is right, 1 if not; the report says where. Records that are published during the audit
    are not checked.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    quarantine
        Quarantine table of a silver table; its rows count as rows of the silver table.
    complete
        Report a finding if the table is behind the log.
    from_first
        Report a finding if the table begins later than the log.
    range_offsets
        Number of offsets whose checksums are compared together.
    master
        Spark master: local[*], spark://HOST:PORT, yarn or k8s://…. Default: local[*].
    remote
        Spark Connect server, as sc://HOST:PORT.
    json
        Print the report as JSON.

    Raises:
        InvalidSettings: options that exclude each other, or a value out of range.
    """
    name = TopicName.parse(topic_name(topic))
    source.check()
    if table is None and (quarantine is not None or complete or from_first):
        raise InvalidSettings("--quarantine, --complete and --from-first need --table")
    if range_offsets < 1:
        raise InvalidSettings(f"--range-offsets must be 1 or more, not {range_offsets}")
    _check_spark()
    from sulina.spark.audit import Audit

    _check_there(source.location(), name, [one for one in (table, quarantine) if one is not None])
    if not json:
        terminal.say("starting Spark …")
    report = Audit(
        spark=_session(f"sulina audit {name}", master, remote, spark_logs=spark_logs),
        location=source.location(),
        topic=name,
        table=table,
        quarantine=quarantine,
        is_complete=complete,
        is_from_first=from_first,
        range_offsets=range_offsets,
    ).run()
    if json:
        terminal.print_json(report)
    else:
        show(report)
    return 0 if report.holds else FOUND


def _check_spark() -> None:
    """Check that PySpark and delta-rs are installed.

    Raises:
        SparkUnavailable: one of them is missing.
    """
    try:
        import deltalake  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkUnavailable(f"{error.name} is missing: pip install 'sulina[spark]'") from None


def _check_there(location: "LogLocation", topic: TopicName, tables: Sequence[str]) -> None:
    """Check that the topic and the tables exist, before Spark starts.

    Raises:
        TopicNotFound: there is no such topic.
        TableNotFound: there is no table at one of these places.
        Disconnected: no broker answers.
    """
    from sulina.spark.clients import client_of
    from sulina.spark.delta_log import open_table
    from sulina.spark.log_catalogue import open_catalogue
    from sulina.spark.scan import TopicChoice
    from sulina.spark.table_location import TableLocation

    try:
        open_catalogue(location, TopicChoice((str(topic),))).partitions()
    except TopicNotFound as error:
        if location.url is not None:
            error.add_note(near_topic(str(topic), [info.topic for info in client_of(location.url).admin.topics()]))
        raise
    for table in tables:
        open_table(TableLocation.parse(table))


def _session(name: str, master: str | None, remote: str | None, *, spark_logs: bool) -> "SparkSession":
    from sulina.spark.session import session

    spark = session(name, master=master, remote=remote, is_quiet=not spark_logs)
    if remote is None and not spark_logs:
        spark.sparkContext.setLogLevel("OFF")  # what goes wrong is in the report, or told in one line
    return spark


def show(report: "AuditReport") -> None:
    """Print one line for each partition, then the findings, then the verdict."""
    rare = RARE if report.table is not None else (*RARE, "table")
    terminal.print_table(COLUMNS, map(_row, report.partitions), right=COLUMNS, rare=rare)
    if report.findings:
        terminal.done("")
        findings = report.findings[:FINDINGS_SHOWN_MAX]
        terminal.print_table(("partition", "finding"), [(one.partition, one.what) for one in findings])
        more = len(report.findings) - len(findings) + report.findings_left_out
        if more:
            terminal.done(f"and {terminal.counted(more, 'more finding')}; --json has up to a thousand")
    terminal.done("")
    terminal.done(verdict(report))


def _row(one: "PartitionAudit") -> tuple[object, ...]:
    not_read = sum(end - start for start, end in one.unread)
    return (
        one.partition,
        one.start,
        one.end,
        one.records,
        not_read or None,
        one.versions,
        one.table_records,
        one.begins,
        one.behind,
        one.forgotten,
        one.ahead,
    )


def verdict(report: "AuditReport") -> str:
    """Return the outcome as one sentence."""
    count = len(report.findings) + report.findings_left_out
    if count:
        return f"{report.topic} failed the audit: {terminal.counted(count, 'finding')}."
    records = terminal.counted(sum(one.records for one in report.partitions), "record")
    partitions = terminal.counted(len(report.partitions), "partition")
    said = f"{report.topic} passed: {records} in {partitions}, every offset once, checksums match, versions have no gap"
    if report.table is None:
        return f"{said}."
    rows = terminal.counted(sum(one.table_records or 0 for one in report.partitions), "row")
    if any(one.ranges is not None for one in report.partitions):
        return f"{said}; the table has {rows} for them, none twice."
    behind = sum(one.behind or 0 for one in report.partitions)
    after = f" and is {terminal.counted(behind, 'record')} behind" if behind else ""
    late = sum((one.begins or one.start) - one.start for one in report.partitions)
    before = f", begins after {terminal.counted(late, 'record')}" if late else ""
    return f"{said}; the table equals the log in {rows}{before}{after}."

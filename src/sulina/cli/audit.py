"""`sulina audit`: proof, by a Spark job, that a topic holds what it promises and that a table equals its log."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sulina.cli import terminal
from sulina.cli.remote import DEFAULT_URL, topic_name
from sulina.errors import InvalidSettings
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
RARE = ("not read", "begins", "behind", "forgotten", "ahead")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The options that say where the log is."""

    url: Annotated[
        str | None, Parameter(env_var=URL_VARIABLE, help=f"Where the node is; {DEFAULT_URL} unless told.")
    ] = None
    path: Annotated[
        str | None,
        Parameter(
            help="Instead of a node: an archive (s3://…, gs://…, az://…, file:///… or a folder), or a data directory."
        ),
    ] = None
    objects: Annotated[
        str | None,
        Parameter(
            help="The archive to read, instead of the one that the node names; `none`: everything from the node."
        ),
    ] = None
    objects_endpoint: Annotated[
        str | None, Parameter(help="The URL of an object store that is not the cloud's own.")
    ] = None

    def check(self) -> None:
        """Check that the options name one log; a URL from the environment does not count.

        Raises:
            InvalidSettings: both --url and --path are given.
        """
        if self.path is not None and self.url is not None and self.url != os.environ.get(URL_VARIABLE):
            raise InvalidSettings("say either --url (of a node) or --path (of an archive or a data directory)")

    def location(self) -> "LogLocation":
        """Return the location in the form that the data source takes."""
        from sulina.spark.options import LogLocation

        url = None if self.path is not None else self.url or DEFAULT_URL
        return LogLocation(url=url, path=self.path, objects=self.objects, objects_endpoint=self.objects_endpoint)


AT_NODE = Source()  # the default; cyclopts fills in what was given


def audit(
    topic: str,
    /,
    *,
    source: Source = AT_NODE,
    table: str | None = None,
    quarantine: str | None = None,
    complete: bool = False,
    from_first: bool = False,
    range_offsets: int = 100_000,
    master: Annotated[str | None, Parameter(env_var="SPARK_MASTER")] = None,
    remote: Annotated[str | None, Parameter(env_var="SPARK_REMOTE")] = None,
    json: bool = False,
) -> int:
    """Prove that every offset exists once, checksums hold, versions have no gap, and a table equals the log.

    Exit code 0: all of it holds. 1: it does not, and the report says where. What comes while it runs is not looked at.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    table
        A Delta table that was made of the topic. A bronze one must equal the log from its first row to its newest; of
        a silver one each row must be of a record, and no record may have two.
    quarantine
        The quarantine of a silver table, which is counted with it.
    complete
        A table that is behind the log is a finding too.
    from_first
        A table that begins later than the log is a finding too; else it is told where it begins.
    range_offsets
        Offsets of one range; sums are made and compared by range.
    master
        Where Spark runs: local[*] unless told, spark://HOST:PORT, yarn, k8s://….
    remote
        A Spark Connect server, sc://HOST:PORT.
    json
        The report as JSON.
    """
    name = TopicName.parse(topic_name(topic))
    source.check()
    if table is None and (quarantine is not None or complete or from_first):
        raise InvalidSettings("--quarantine, --complete and --from-first are about a table: say which, with --table")
    if range_offsets < 1:
        raise InvalidSettings(f"--range-offsets is 1 or more, not {range_offsets}")
    _check_spark()
    from sulina.spark.audit import Audit

    if not json:
        terminal.say("starting Spark …")
    report = Audit(
        spark=_session(f"sulina audit {name}", master, remote),
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


def _session(name: str, master: str | None, remote: str | None) -> "SparkSession":
    from sulina.spark.session import session

    spark = session(name, master=master, remote=remote)
    if remote is None:
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
        return f"{report.topic} does not hold: {terminal.counted(count, 'finding')}."
    records = terminal.counted(sum(one.records for one in report.partitions), "record")
    partitions = terminal.counted(len(report.partitions), "partition")
    said = f"{report.topic} holds: {records} in {partitions}, every offset once, checksums hold, versions have no gap"
    if report.table is None:
        return f"{said}."
    rows = terminal.counted(sum(one.table_records or 0 for one in report.partitions), "row")
    if any(one.ranges is not None for one in report.partitions):
        return f"{said}; the table has {rows} of them, none twice."
    behind = sum(one.behind or 0 for one in report.partitions)
    after = f" and is {terminal.counted(behind, 'record')} behind" if behind else ""
    late = sum((one.begins or one.start) - one.start for one in report.partitions)
    before = f", begins after {terminal.counted(late, 'record')}" if late else ""
    return f"{said}; the table equals the log in {rows}{before}{after}."

"""What `sulina audit` says, without Spark: how it refuses, and how it reports."""

from pathlib import Path

import pytest

from sulina.cli import audit, terminal
from sulina.spark.audit_checks import AuditReport, Finding, Kind, PartitionAudit, RangeCount
from tests.cli.conftest import Ended, Served, told

HELD = PartitionAudit(partition=0, start=0, end=1200, records=1200, versions=12)


def report(*partitions: PartitionAudit, table: str | None = None, findings: tuple[Finding, ...] = ()) -> AuditReport:
    return AuditReport(
        topic="/default/orders",
        table=table,
        table_version=None if table is None else 3,
        holds=not findings,
        partitions=list(partitions),
        findings=list(findings),
        findings_left_out=0,
        seconds=1.0,
    )


def refused(ended: Ended, message: str) -> None:
    assert (ended.code, ended.error["code"]) == (1, "invalid_settings")
    assert message in ended.error["message"]


def test_wrong_flags_are_refused_before_spark_is_started(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SULINA_URL", raising=False)
    refused(told(capfd, "audit", "x", "--url", "http://a:1", "--path", "/b", "--json"), "exclude each other")
    refused(told(capfd, "audit", "x", "--complete", "--json"), "--table")
    refused(told(capfd, "audit", "x", "--quarantine", "/q", "--json"), "--table")
    refused(told(capfd, "audit", "x", "--range-offsets", "0", "--json"), "1 or more")
    assert told(capfd, "audit").code == 2
    assert told(capfd, "audit", "x", "--tables", "y").code == 2


def test_without_java_it_says_what_is_missing(
    node: Served, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node.ok("topic", "create", "x")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    ended = told(capfd, "audit", "x", "--json", "--url", node.url)
    assert (ended.code, ended.error["code"]) == (1, "spark_unavailable")
    assert "JAVA_HOME" in ended.error["message"]


def test_a_topic_that_holds_is_told_in_one_sentence() -> None:
    said = (
        "/default/orders passed: 1,200 records in 1 partition, every offset once, checksums match, versions have no gap"
    )
    assert audit.verdict(report(HELD)) == f"{said}."
    behind = PartitionAudit(
        partition=0, start=0, end=1200, records=1200, versions=12, table_records=1199, behind=1, forgotten=0
    )
    assert (
        audit.verdict(report(behind, table="t"))
        == f"{said}; the table equals the log in 1,199 rows and is 1 record behind."
    )
    silver = PartitionAudit(
        partition=0, start=0, end=1200, records=1200, table_records=7, ranges=[RangeCount(0, 1200, 1200, 7)]
    )
    assert audit.verdict(report(silver, table="t")) == f"{said}; the table has 7 rows for them, none twice."


def test_findings_come_after_the_partitions_and_before_the_verdict(capfd: pytest.CaptureFixture[str]) -> None:
    terminal.console.cache_clear()
    damaged = PartitionAudit(partition=1, start=5, end=1200, records=1000, unread=[(1005, 1200)], versions=3)
    findings = tuple(Finding(kind=Kind.DAMAGED, what=f"file {number} is damaged", partition=1) for number in range(60))
    audit.show(report(HELD, damaged, findings=findings))
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["partition", "first", "next", "records", "not", "read", "versions"]
    assert lines[1].split() == ["0", "0", "1200", "1200", "-", "12"]
    assert lines[2].split() == ["1", "5", "1200", "1000", "195", "3"]
    assert lines[5].split() == ["1", "file", "0", "is", "damaged"]
    assert lines[-3] == "and 10 more findings; --json has up to a thousand"
    assert lines[-1] == "/default/orders failed the audit: 60 findings."

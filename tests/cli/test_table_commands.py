"""What `sulina table` says: S5, on tables in directories."""

import os
import time
from pathlib import Path

import pytest

from sulina.spark.delta_lease import hold
from sulina.spark.table_location import TableLocation
from tests.cli.conftest import told
from tests.spark.test_delta_table import append, rows_of


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three versions with a file each."""
    folder = tmp_path / "tables" / "orders"
    for n in range(3):
        append(folder, "n long", [[n]], app="query", version=n)
    return folder


def test_s5_optimize_says_what_became_of_the_files(table: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = told(capfd, "table", "optimize", str(table))
    assert done.code == 0, done
    assert f"{table}: 3 files (" in done.out
    assert "became 1 file (" in done.out
    assert done.out.rstrip().endswith("by version 3")
    assert "nothing to compact, 1 file (" in told(capfd, "table", "optimize", str(table)).out
    again = told(capfd, "table", "optimize", str(table), "--z-order", "n", "--json").json
    assert (again["files_removed"], again["files_added"], again["version"]) == (1, 1, 4)
    assert rows_of(table) == [{"n": n} for n in range(3)]


def test_s5_vacuum_lists_what_would_go_and_removes_it(table: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told(capfd, "table", "optimize", str(table))
    young = told(capfd, "table", "vacuum", str(table), "--dry-run")
    assert "would remove 0 files (0 B), kept 3 unused files" in young.out
    then = time.time() - 8 * 86_400
    for path in table.rglob("*"):
        os.utime(path, (then, then))
    listed = told(capfd, "table", "vacuum", str(table), "--dry-run")
    assert listed.out.count("part-") == 3
    assert "3 files (" in listed.out
    found = told(capfd, "table", "vacuum", str(table), "--json").json
    assert (len(found["files"]), found["is_dry_run"], found["version"]) == (3, False, 3)
    assert rows_of(table) == [{"n": n} for n in range(3)]
    refused = told(capfd, "table", "vacuum", str(table), "--retention-hours", "0.5")
    assert refused.code == 1
    assert "keep an hour or more, or force it" in refused.err
    assert told(capfd, "table", "vacuum", str(table), "--retention-hours", "0.5", "--force").code == 0


def test_s5_history_lists_versions_the_newest_first(table: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told(capfd, "table", "optimize", str(table))
    lines = told(capfd, "table", "history", str(table)).out.splitlines()
    assert lines[0].split()[:3] == ["version", "when", "operation"]
    assert "OPTIMIZE" in lines[1]
    assert "sulina.maintenance 1" in lines[1]
    assert "query 2" in lines[2]
    found = told(capfd, "table", "history", str(table), "--limit", "2", "--json").json
    assert [facts["version"] for facts in found] == [3, 2]
    assert told(capfd, "table", "history", str(table), "--limit", "0").code == 1


def test_s5_mistakes_are_named(table: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mistyped = told(capfd, "table", "optimize", str(table.parent / "order"))
    assert mistyped.code == 1
    assert f"no Delta table exists at {table.parent}/order; did you mean {table}?" in mistyped.err
    above = told(capfd, "table", "history", str(table.parent), "--json")
    assert above.error["code"] == "table_not_found"
    assert above.error["hint"] == "tables in this folder: orders"
    assert "is not the location of a table" in told(capfd, "table", "vacuum", "ftp://x/y").err
    column = told(capfd, "table", "optimize", str(table), "--z-order", "m")
    assert "column 'm' is unknown" in column.err
    assert "names no column" in told(capfd, "table", "optimize", str(table), "--z-order", ",").err
    assert "a target of 0 bytes" in told(capfd, "table", "optimize", str(table), "--target-mib", "0").err


def test_s5_a_second_maintainer_is_told_to_wait(table: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with hold(TableLocation.parse(str(table)), recorded=0) as lease:
        busy = told(capfd, "table", "optimize", str(table), "--json")
    assert busy.code == 1
    assert busy.error["code"] == "maintenance_busy"
    assert busy.error["details"]["holder"] == lease.holder

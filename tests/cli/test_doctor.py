"""What doctor finds, and how it ends."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from sulina.cli import doctor as checks
from sulina.cli import run
from sulina.cli.doctor import Grade
from sulina.config import Settings


def found(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", "--http", "127.0.0.1:0", *words, "--json"])
    told = json.loads(capfd.readouterr().out)
    return code, {finding["check"]: finding for finding in told["findings"]}


def test_a_machine_that_will_do(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, findings = found(capfd, "--data", str(tmp_path / "new" / "data"))
    assert code == 0
    assert set(findings) == {"python", "data", "fsync", "clock", "port", "open files", "java"}
    assert findings["data"]["grade"] == "ok"
    assert findings["fsync"]["figures"]["p50_ms"] <= findings["fsync"]["figures"]["p99_ms"]
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_a_directory_that_cannot_be_written_fails(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, findings = found(capfd, "--data", str(tmp_path / "file" / "data"))
    assert code == 1
    assert findings["data"]["grade"] == "fail"
    assert "--data" in findings["data"]["advice"]


def test_a_port_that_something_else_uses_fails(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = checks.check_port(Settings(http=f"127.0.0.1:{taken.getsockname()[1]}"))
    assert finding.grade == Grade.FAIL
    assert finding.advice


def test_a_full_disk_a_slow_disk_and_a_disk_in_memory_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data=str(tmp_path))
    monkeypatch.setattr(checks, "FREE_BYTES_LOW", 1 << 60)
    assert checks.check_data(settings).grade == Grade.WARN
    monkeypatch.setattr(checks, "FREE_BYTES_NONE", 1 << 60)
    assert checks.check_data(settings).grade == Grade.FAIL
    monkeypatch.setattr(checks, "SLOW_MS", 0.0)
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(checks, "MOUNTS", mounts)
    mounts.write_text("disk / ext4 rw 0 0\n")
    assert checks.check_fsync(settings).grade == Grade.WARN
    mounts.write_text(f"disk / ext4 rw 0 0\nmemory {tmp_path} tmpfs rw 0 0\n")
    assert "in memory" in str(checks.check_fsync(settings).advice)


def test_java_is_only_for_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = checks.check_java(Settings())
    assert finding.grade == Grade.WARN
    assert "Spark" in str(finding.advice)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    for version, grade in (("21.0.2", Grade.OK), ("1.8.0_392", Grade.WARN)):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        assert checks.check_java(Settings()).grade == grade


def test_people_are_told_in_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["doctor", "--http", "127.0.0.1:0", "--data", str(tmp_path)]) == 0
    assert "fsync" in capsys.readouterr().out

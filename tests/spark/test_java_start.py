"""What Spark's Java is started with: an archive of its classes, which is made when a driver has ended."""

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from sulina.spark import java_start
from sulina.spark.java_start import ARCHIVES_MAX, OPTIONS, TRY_SECONDS, quick_java

SECONDS_MAX = 30.0
DRIVER = """
import sys
from sulina.spark import java_start
with java_start.quick_java(sys.argv[1], sys.argv[2]):
    print(__import__("os").environ[java_start.OPTIONS])
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a Java, a Spark and an empty cache. What a driver would do at its end is not done."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(OPTIONS, raising=False)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "java").write_text("java")
    with patch.object(atexit, "register") as registered:
        yield tmp_path
    assert all(call.args[0] is java_start.make_later for call in registered.call_args_list)


def options(machine: Path) -> str:
    with quick_java(str(machine / "java"), str(machine / "spark")):
        return os.environ[OPTIONS]


def archive_of(machine: Path) -> Path:
    """Return the archive of the machine's Java, which is there after this."""
    folder = machine / "cache" / "sulina" / "java"
    before = set(folder.glob("*")) if folder.exists() else set()
    archive = java_start.archive_for(str(machine / "java"), str(machine / "spark"))
    assert archive is not None
    assert set(folder.glob("*")) == before
    archive.write_bytes(b"classes")
    return archive


def test_an_archive_is_used_and_checked_and_other_programs_start_as_before(machine: Path) -> None:
    assert "Archive" not in options(machine)
    archive = archive_of(machine)
    said = options(machine)
    assert f"-XX:SharedArchiveFile={archive} -XX:+VerifySharedSpaces" in said
    assert OPTIONS not in os.environ


@pytest.mark.parametrize("changed", ["java", "spark/jars"])
def test_another_java_or_spark_has_another_archive(machine: Path, changed: str) -> None:
    before = archive_of(machine)
    os.utime(machine / changed, (1, 1))
    assert archive_of(machine) != before


def test_what_a_user_has_set_stays_and_comes_last(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive_of(machine)
    monkeypatch.setenv(OPTIONS, "-Xshare:off -Dours=1")
    said = options(machine)
    assert said.endswith(" -Xshare:off -Dours=1")
    assert "Archive" not in said
    assert os.environ[OPTIONS] == "-Xshare:off -Dours=1"


def test_without_a_cache_that_can_be_written_java_starts_as_ever(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(machine / "file"))
    assert "Archive" not in options(machine)


def test_a_driver_without_an_archive_has_one_made_when_it_ends_and_waits_for_nothing(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that makes it holds nothing of the driver's open. Here it ends at once, as it finds no Java."""
    monkeypatch.setenv("JAVA_HOME", str(machine))
    words = [sys.executable, "-c", DRIVER, str(machine / "java"), str(machine / "spark")]
    for _ in range(2):
        subprocess.run(words, capture_output=True, timeout=SECONDS_MAX, check=True)
    folder = machine / "cache" / "sulina" / "java"
    deadline = time.monotonic() + SECONDS_MAX
    while not list(folder.glob("*.tried")):
        assert time.monotonic() < deadline, "nobody has tried"
        time.sleep(0.02)


def test_where_no_archive_can_be_made_it_is_tried_once_a_day(machine: Path) -> None:
    archive = archive_of(machine)
    archive.unlink()
    assert java_start.is_due(archive)
    tried = archive.with_suffix(".tried")
    tried.touch()
    assert not java_start.is_due(archive)
    long_ago = time.time() - TRY_SECONDS
    os.utime(tried, (long_ago, long_ago))
    assert java_start.is_due(archive)


def test_only_the_newest_archives_stay(machine: Path) -> None:
    archive = archive_of(machine)
    for number in range(2 * ARCHIVES_MAX):
        (archive.parent / f"{number}.jsa").write_bytes(b"classes")
        os.utime(archive.parent / f"{number}.jsa", (number, number))
    java_start.remove_others(archive)
    kept = {str(number) for number in range(ARCHIVES_MAX + 1, 2 * ARCHIVES_MAX)} | {archive.stem}
    assert {path.stem for path in archive.parent.glob("*.jsa")} == kept

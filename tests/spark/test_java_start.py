"""What Spark's Java is started with: an archive of its classes that is used when it is whole, and left when it ends."""

import os
from pathlib import Path

import pytest

from sulina.spark.java_start import ARCHIVES_MAX, OPTIONS, quick_java


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Java, a Spark and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(OPTIONS, raising=False)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "java").write_text("java")
    return tmp_path


def options(machine: Path) -> str:
    with quick_java(str(machine / "java"), str(machine / "spark")):
        return os.environ[OPTIONS]


def archive_in(said: str, name: str) -> Path:
    (found,) = [word for word in said.split() if word.startswith(f"-XX:{name}=")]
    return Path(found.partition("=")[2])


def test_the_first_java_leaves_an_archive_and_the_next_one_uses_it(machine: Path) -> None:
    archive = archive_in(options(machine), "ArchiveClassesAtExit")
    archive.write_bytes(b"\xa8\xab\x0b\xf0 classes")
    assert archive_in(options(machine), "SharedArchiveFile") == archive
    assert OPTIONS not in os.environ, "other programs are started as before"


def test_an_archive_without_a_head_was_not_written_to_its_end_and_is_made_again(machine: Path) -> None:
    archive = archive_in(options(machine), "ArchiveClassesAtExit")
    archive.write_bytes(bytes(4096) + b"classes")
    assert archive_in(options(machine), "ArchiveClassesAtExit") == archive


@pytest.mark.parametrize("changed", ["java", "spark/jars"])
def test_another_java_or_spark_has_another_archive(machine: Path, changed: str) -> None:
    before = archive_in(options(machine), "ArchiveClassesAtExit")
    os.utime(machine / changed, (1, 1))
    assert archive_in(options(machine), "ArchiveClassesAtExit") != before


def test_only_the_newest_archives_stay(machine: Path) -> None:
    folder = archive_in(options(machine), "ArchiveClassesAtExit").parent
    for number in range(2 * ARCHIVES_MAX):
        (folder / f"{number}.jsa").write_bytes(b"classes")
        os.utime(folder / f"{number}.jsa", (number, number))
    options(machine)
    assert {path.stem for path in folder.glob("*.jsa")} == {str(2 * ARCHIVES_MAX - 1), str(2 * ARCHIVES_MAX - 2)}


def test_what_a_user_has_set_stays_and_comes_last(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

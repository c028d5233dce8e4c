"""R10: directories of a topic that vanished are kept until it returns, or until its delete mark is found."""

from pathlib import Path

import pytest

from sulina.errors import LogLocked
from sulina.storage import orphans
from sulina.storage.files import OsFiles
from sulina.storage.partition_directory import STAMP_FILE, ensure_stamp, released_note
from sulina.types import PartitionName, TopicName

FILES = OsFiles()
PARTITION = PartitionName(TopicName("default", "orders"), 0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / PARTITION.directory
    path.mkdir()
    (path / "record").write_text("acknowledged")
    ensure_stamp(FILES, str(path), "t1")
    return path


def test_r10_what_vanished_is_kept_and_taken_back_when_it_returns(directory: Path, tmp_path: Path) -> None:
    path = orphans.set_aside(FILES, str(directory), "t1")
    assert path is not None
    assert not directory.exists()
    assert list(orphans.orphans(FILES, str(tmp_path))) == [orphans.Orphan(PARTITION, "t1", path)]
    assert not orphans.restore(FILES, str(directory), "t2")
    assert orphans.restore(FILES, str(directory), "t1")
    assert (directory / "record").read_text() == "acknowledged"


def test_r10_a_new_topic_of_the_same_name_does_not_get_what_another_left(directory: Path, tmp_path: Path) -> None:
    assert not orphans.restore(FILES, str(directory), "t2")
    assert not directory.exists()
    assert [orphan.topic_id for orphan in orphans.orphans(FILES, str(tmp_path))] == ["t1"]


def test_r10_a_delete_removes_what_is_of_that_topic_and_nothing_else(directory: Path) -> None:
    orphans.remove(FILES, str(directory), "t2")
    assert directory.exists()
    orphans.set_aside(FILES, str(directory), "t1")
    orphans.remove(FILES, str(directory), "t2")
    assert Path(orphans.orphan_path(str(directory), "t1")).exists()
    orphans.remove(FILES, str(directory), "t1")
    assert not Path(orphans.orphan_path(str(directory), "t1")).exists()


def test_r10_a_delete_keeps_what_does_not_say_whose_it_is(directory: Path) -> None:
    """R10: a directory without a stamp may be that of another topic of the same name; so may the note of one."""
    note = Path(released_note(str(directory)))
    note.parent.mkdir()
    note.write_bytes((directory / STAMP_FILE).read_bytes())
    orphans.remove(FILES, str(directory), "t2")
    assert note.exists()
    (directory / STAMP_FILE).unlink()
    orphans.remove(FILES, str(directory), "t1")
    assert (directory / "record").read_text() == "acknowledged"
    assert not note.exists()


def test_two_directories_of_one_topic_are_both_kept(directory: Path) -> None:
    Path(orphans.orphan_path(str(directory), "t1")).mkdir()
    with pytest.raises(LogLocked):
        orphans.set_aside(FILES, str(directory), "t1")
    assert (directory / "record").exists()

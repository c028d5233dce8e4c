"""What every `ports.Files` does, the real one and the simulated one alike."""

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sulina.ports import File, Files
from sulina.storage.files import IOV_MAX, OsFiles
from sulina.testing import SimulatedFiles


@pytest.fixture(params=[OsFiles, SimulatedFiles])
def files(request: pytest.FixtureRequest) -> Files:
    make: Callable[[], Files] = request.param
    return make()


@pytest.fixture
def root(files: Files, tmp_path: Path) -> str:
    path = str(tmp_path / "root")
    files.make_directory(path)
    return path


@pytest.fixture
def file(files: Files, root: str) -> Iterator[File]:
    file = files.create(f"{root}/file")
    yield file
    file.close()


def contents(file: File) -> bytes:
    return file.read(0, file.size())


def put(files: Files, path: str, data: bytes) -> None:
    file = files.create(path)
    file.write(0, [data])
    file.close()


def get(files: Files, path: str) -> bytes:
    file = files.open(path)
    try:
        return contents(file)
    finally:
        file.close()


# Contents.


def test_a_new_file_is_empty(file: File) -> None:
    assert file.size() == 0
    assert file.read(0, 1) == b""


def test_what_was_written_is_read(file: File) -> None:
    file.write(0, [b"hello ", bytearray(b"big "), memoryview(b"world")])
    assert contents(file) == b"hello big world"


def test_a_write_overwrites_in_place(file: File) -> None:
    file.write(0, [b"hello world"])
    file.write(6, [b"there"])
    file.write(0, [b"J"])
    assert contents(file) == b"Jello there"


def test_a_write_past_the_end_leaves_zeros_between(file: File) -> None:
    file.write(3, [b"x"])
    assert contents(file) == b"\0\0\0x"


def test_empty_buffers_write_nothing(file: File) -> None:
    file.write(0, [b"", b"a", b"", b"", b"b", b""])
    file.write(2, [])
    file.write(100, [b"", bytearray()])
    assert contents(file) == b"ab"


def test_more_buffers_than_one_system_call_takes_are_all_written(file: File) -> None:
    buffers = [b"%d," % number for number in range(3 * IOV_MAX + 1)]
    file.write(1, buffers)
    assert contents(file) == b"\0" + b"".join(buffers)


def test_buffers_of_wider_items_are_written_as_bytes(file: File) -> None:
    file.write(0, [memoryview(b"\1\2\3\4\5\6\7\0").cast("I")])
    assert contents(file) == b"\1\2\3\4\5\6\7\0"


def test_a_read_is_short_only_at_the_end(file: File) -> None:
    file.write(0, [b"0123456789"])
    assert file.read(4, 4) == b"4567"
    assert file.read(8, 4) == b"89"
    assert file.read(10, 4) == b""
    assert file.read(99, 4) == b""
    assert file.read(0, 0) == b""


def test_truncate_cuts_and_extends_with_zeros(file: File) -> None:
    file.write(0, [b"hello"])
    file.truncate(2)
    assert (file.size(), contents(file)) == (2, b"he")
    file.truncate(4)
    assert (file.size(), contents(file)) == (4, b"he\0\0")


def test_syncing_changes_nothing_to_see(files: Files, root: str, file: File) -> None:
    file.write(0, [b"hello"])
    file.sync()
    file.sync()
    files.sync_directory(root)
    assert contents(file) == b"hello"
    assert files.list(root) == ["file"]


def test_handles_of_one_file_see_each_others_writes(files: Files, root: str, file: File) -> None:
    other = files.open(f"{root}/file")
    other.write(0, [b"hello"])
    assert contents(file) == b"hello"
    other.close()
    assert contents(file) == b"hello"


def test_negative_positions_and_sizes_are_refused(file: File) -> None:
    calls: list[Callable[[], object]] = [
        lambda: file.read(-1, 1),
        lambda: file.write(-1, [b"x"]),
        lambda: file.truncate(-1),
    ]
    for call in calls:
        with pytest.raises(AssertionError):
            call()
    assert file.size() == 0


def test_a_closed_handle_refuses_everything_but_close(file: File) -> None:
    file.write(0, [b"hello"])
    file.close()
    file.close()
    calls: list[Callable[[], object]] = [
        lambda: file.read(0, 1),
        lambda: file.write(0, [b"x"]),
        lambda: file.truncate(0),
        file.size,
        file.sync,
    ]
    for call in calls:
        with pytest.raises(OSError, match="Bad file descriptor") as raised:
            call()
        assert raised.value.errno == errno.EBADF


# Names.


def test_create_refuses_a_name_that_exists(files: Files, root: str, file: File) -> None:
    file.write(0, [b"hello"])
    with pytest.raises(FileExistsError):
        files.create(f"{root}/file")
    assert contents(file) == b"hello"


def test_open_refuses_a_name_that_does_not_exist(files: Files, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/none")
    assert files.list(root) == []


def test_nothing_is_made_in_a_directory_that_does_not_exist(files: Files, root: str, file: File) -> None:
    calls: list[Callable[[], object]] = [
        lambda: files.create(f"{root}/none/a"),
        lambda: files.open(f"{root}/none/a"),
        lambda: files.lock(f"{root}/none/a"),
        lambda: files.link(f"{root}/file", f"{root}/none/a"),
        lambda: files.rename(f"{root}/file", f"{root}/none/a"),
        lambda: files.remove(f"{root}/none/a"),
        lambda: files.sync_directory(f"{root}/none"),
        lambda: files.list(f"{root}/none"),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError):
            call()
    assert files.list(root) == ["file"]


def test_a_file_is_not_a_directory(files: Files, root: str, file: File) -> None:
    calls: list[Callable[[], object]] = [
        lambda: files.create(f"{root}/file/a"),
        lambda: files.open(f"{root}/file/a"),
        lambda: files.list(f"{root}/file"),
        lambda: files.sync_directory(f"{root}/file"),
    ]
    for call in calls:
        with pytest.raises(NotADirectoryError):
            call()
    for path in (f"{root}/file", f"{root}/file/a"):
        with pytest.raises(FileExistsError):
            files.make_directory(path)


def test_a_directory_is_not_a_file(files: Files, root: str, file: File) -> None:
    files.make_directory(f"{root}/directory")
    calls: list[Callable[[], object]] = [
        lambda: files.open(f"{root}/directory"),
        lambda: files.lock(f"{root}/directory"),
        lambda: files.remove(f"{root}/directory"),
        lambda: files.rename(f"{root}/file", f"{root}/directory"),
    ]
    for call in calls:
        with pytest.raises(IsADirectoryError):
            call()
    for make in (lambda path: files.create(path), lambda path: files.link(f"{root}/file", path)):
        with pytest.raises(FileExistsError):
            make(f"{root}/directory")


def test_link_gives_a_second_name_to_one_file(files: Files, root: str, file: File) -> None:
    files.link(f"{root}/file", f"{root}/other")
    file.write(0, [b"hello"])
    assert get(files, f"{root}/other") == b"hello"
    files.remove(f"{root}/file")
    assert get(files, f"{root}/other") == b"hello"


def test_link_never_overwrites(files: Files, root: str) -> None:
    put(files, f"{root}/a", b"a")
    put(files, f"{root}/b", b"b")
    with pytest.raises(FileExistsError):
        files.link(f"{root}/a", f"{root}/b")
    assert get(files, f"{root}/b") == b"b"


def test_link_needs_a_source(files: Files, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.link(f"{root}/none", f"{root}/b")
    assert files.list(root) == []


def test_rename_overwrites(files: Files, root: str) -> None:
    put(files, f"{root}/a", b"a")
    put(files, f"{root}/b", b"b")
    old = files.open(f"{root}/b")
    files.rename(f"{root}/a", f"{root}/b")
    assert files.list(root) == ["b"]
    assert get(files, f"{root}/b") == b"a"
    assert contents(old) == b"b"
    old.close()


def test_rename_goes_to_another_directory(files: Files, root: str) -> None:
    files.make_directory(f"{root}/inner")
    put(files, f"{root}/a", b"a")
    files.rename(f"{root}/a", f"{root}/inner/b")
    assert files.list(root) == ["inner"]
    assert get(files, f"{root}/inner/b") == b"a"


def test_rename_needs_a_source(files: Files, root: str) -> None:
    put(files, f"{root}/b", b"b")
    with pytest.raises(FileNotFoundError):
        files.rename(f"{root}/none", f"{root}/b")
    assert get(files, f"{root}/b") == b"b"


def test_rename_between_two_names_of_one_file_does_nothing(files: Files, root: str) -> None:
    put(files, f"{root}/a", b"a")
    files.link(f"{root}/a", f"{root}/b")
    files.rename(f"{root}/a", f"{root}/b")
    files.rename(f"{root}/a", f"{root}/a")
    assert sorted(files.list(root)) == ["a", "b"]


def test_a_removed_name_is_gone_and_free(files: Files, root: str) -> None:
    put(files, f"{root}/a", b"first")
    files.remove(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        files.remove(f"{root}/a")
    put(files, f"{root}/a", b"second")
    assert get(files, f"{root}/a") == b"second"


def test_an_open_file_outlives_its_name(files: Files, root: str, file: File) -> None:
    file.write(0, [b"hello"])
    files.remove(f"{root}/file")
    file.write(5, [b" world"])
    file.sync()
    assert contents(file) == b"hello world"
    assert files.list(root) == []


def test_list_names_files_and_directories(files: Files, root: str) -> None:
    files.make_directory(f"{root}/inner/most")
    put(files, f"{root}/a", b"")
    put(files, f"{root}/inner/b", b"")
    assert sorted(files.list(root)) == ["a", "inner"]
    assert sorted(files.list(f"{root}/inner")) == ["b", "most"]
    assert files.list(f"{root}/inner/most") == []


def test_make_directory_makes_parents_and_accepts_what_exists(files: Files, root: str) -> None:
    files.make_directory(f"{root}/a/b/c")
    put(files, f"{root}/a/b/c/file", b"x")
    files.make_directory(f"{root}/a/b/c")
    files.make_directory(f"{root}/a/b/d")
    assert sorted(files.list(f"{root}/a/b")) == ["c", "d"]
    assert files.list(f"{root}/a/b/c") == ["file"]


# Locks.


def test_a_lock_is_held_by_one_until_closed(files: Files, root: str) -> None:
    first = files.lock(f"{root}/lock")
    assert first is not None
    assert files.lock(f"{root}/lock") is None
    assert files.lock(f"{root}/lock") is None
    first.close()
    second = files.lock(f"{root}/lock")
    assert second is not None
    first.close()  # once more: it does not free what another holds now
    assert files.lock(f"{root}/lock") is None
    second.close()


def test_locks_of_different_files_do_not_meet(files: Files, root: str) -> None:
    first, second = files.lock(f"{root}/a"), files.lock(f"{root}/b")
    assert first is not None
    assert second is not None
    first.close()
    second.close()


def test_a_lock_belongs_to_the_file_and_not_to_the_name(files: Files, root: str) -> None:
    first = files.lock(f"{root}/a")
    assert first is not None
    files.link(f"{root}/a", f"{root}/b")
    assert files.lock(f"{root}/b") is None
    first.close()


def test_lock_makes_the_file_or_keeps_what_it_holds(files: Files, root: str) -> None:
    for expected in (b"", b"owner"):
        file = files.lock(f"{root}/lock")
        assert file is not None
        assert contents(file) == expected
        file.write(0, [b"owner"])
        file.close()


def test_closing_another_handle_does_not_free_the_lock(files: Files, root: str) -> None:
    holder = files.lock(f"{root}/lock")
    assert holder is not None
    files.open(f"{root}/lock").close()
    assert files.lock(f"{root}/lock") is None
    holder.close()


# The real one only: what a single process with a kind kernel does not show.

HOLD_LOCK = """
import sys
from sulina.storage.files import OsFiles
print("held" if OsFiles().lock(sys.argv[1]) else "refused", flush=True)
sys.stdin.read()
"""


def lock_elsewhere(path: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD_LOCK, path]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_lock_excludes_other_processes_until_they_die(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with lock_elsewhere(path) as holder:
        assert answer(holder) == "held"
        assert OsFiles().lock(path) is None
        holder.kill()
        holder.wait()
        ours = OsFiles().lock(path)
    assert ours is not None
    with lock_elsewhere(path) as other:
        assert answer(other) == "refused"
        other.kill()
    ours.close()


def test_short_writes_and_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    pwritev, pread = os.pwritev, os.pread

    def write_some(descriptor: int, buffers: list[memoryview], position: int) -> int:
        data = b"".join(buffers)
        return pwritev(descriptor, [data[: rng.randint(1, len(data))]], position)

    def read_some(descriptor: int, size_bytes: int, position: int) -> bytes:
        return pread(descriptor, rng.randint(1, size_bytes), position)

    monkeypatch.setattr(os, "pwritev", write_some)
    monkeypatch.setattr(os, "pread", read_some)
    buffers = [rng.randbytes(rng.randrange(50)) for _ in range(60)]
    file = OsFiles().create(str(tmp_path / "file"))
    file.write(3, buffers)
    assert contents(file) == b"\0\0\0" + b"".join(buffers)
    file.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were synced, in order."""
    paths: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: paths.append(os.readlink(f"/proc/self/fd/{fd}")))
    return paths


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_syncs_reach_the_system(tmp_path: Path, synced: list[str]) -> None:
    files, path = OsFiles(), str(tmp_path / "file")
    file = files.create(path)
    assert synced == []
    file.sync()
    files.sync_directory(str(tmp_path))
    file.close()
    assert synced == [path, str(tmp_path)]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_new_directory_is_synced_in_its_parent(tmp_path: Path, synced: list[str]) -> None:
    OsFiles().make_directory(str(tmp_path / "a" / "b"))
    assert synced == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a")]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_directory_that_a_dead_process_made_is_synced_too(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "a").mkdir()
    OsFiles().make_directory(str(tmp_path / "a"))
    assert synced == [str(tmp_path)]


def test_directories_are_made_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    OsFiles().make_directory("a/b")
    assert (tmp_path / "a" / "b").is_dir()

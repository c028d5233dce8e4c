"""`stop_after` ends the world in any chosen operation, and nothing moves after it."""

import random
from collections.abc import Callable

import pytest

from sulina.ports import Files
from sulina.testing import Crashed, SimulatedFile, SimulatedFiles


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles()


def durable(files: SimulatedFiles, data: bytes) -> SimulatedFile:
    file = files.create("/a")
    file.write(0, [data])
    file.sync()
    files.sync_directory("/")
    return file


def scenario(files: Files) -> None:
    lock = files.lock("/lock")
    assert lock is not None
    file = files.create("/a")
    try:
        file.write(0, [b"hello", b" world"])
        file.sync()
        files.link("/a", "/b")
        files.sync_directory("/")
        files.rename("/b", "/c")
        file.truncate(3)
        files.remove("/a")
        files.make_directory("/d")
    except Exception:  # noqa: BLE001 - as careless code would
        raise AssertionError("a crash must not be caught") from None
    finally:
        file.close()
        lock.close()


def test_every_mutating_call_is_counted_and_traced(files: SimulatedFiles) -> None:
    scenario(files)
    files.open("/c").size()
    files.list("/")
    assert list(files.trace) == [
        ("lock", "/lock"),
        ("create", "/a"),
        ("write", "/a"),
        ("sync", "/a"),
        ("link", "/b"),
        ("sync_directory", "/"),
        ("rename", "/c"),
        ("truncate", "/a"),
        ("remove", "/a"),
        ("make_directory", "/d"),
    ]
    assert files.operations == 10


def test_the_trace_is_bounded(files: SimulatedFiles) -> None:
    file = files.create("/a")
    for _ in range(1500):
        file.sync()
    assert files.operations == 1501
    assert len(files.trace) == 1000


def test_the_world_stops_in_the_nth_operation_and_stays_stopped() -> None:
    expected = [[], ["/lock"], ["/a", "/lock"], ["/a", "/lock"], ["/a", "/lock"]]
    expected += [["/a", "/b", "/lock"], ["/a", "/b", "/lock"], ["/a", "/c", "/lock"], ["/a", "/c", "/lock"]]
    expected += [["/c", "/lock"]]
    for operations, paths in enumerate(expected, start=1):
        files = SimulatedFiles()
        files.stop_after(operations=operations)
        with pytest.raises(Crashed, match=f"operation {operations}: {files.trace[-1][0] if files.trace else ''}"):
            scenario(files)
        assert files.operations == operations
        assert files.paths() == paths


def test_the_operation_in_which_the_world_stops_is_not_done(files: SimulatedFiles) -> None:
    file = durable(files, b"hello")
    file.write(0, [b"J"])
    files.stop_after(operations=1)
    with pytest.raises(Crashed):
        file.sync()
    assert any(files.crash(random.Random(seed)).read("/a") == b"hello" for seed in range(50))


def test_operations_are_counted_from_the_call_of_stop_after(files: SimulatedFiles) -> None:
    file = durable(files, b"hello")
    files.stop_after(operations=2)
    file.write(0, [b"J"])
    with pytest.raises(Crashed):
        file.write(0, [b"C"])
    assert files.read("/a") == b"Jello"


def test_a_dead_process_can_do_nothing_but_close(files: SimulatedFiles) -> None:
    file = durable(files, b"hello")
    files.stop_after(operations=1)
    with pytest.raises(Crashed):
        file.sync()
    calls: list[Callable[[], object]] = [
        lambda: file.read(0, 1),
        lambda: file.write(0, [b"x"]),
        lambda: file.truncate(0),
        file.sync,
        file.size,
        lambda: files.open("/a"),
        lambda: files.create("/b"),
        lambda: files.lock("/b"),
        lambda: files.link("/a", "/b"),
        lambda: files.rename("/a", "/b"),
        lambda: files.remove("/a"),
        lambda: files.list("/"),
        lambda: files.make_directory("/d"),
        lambda: files.sync_directory("/"),
    ]
    for call in calls:
        with pytest.raises(Crashed):
            call()
    file.close()
    assert (files.paths(), files.read("/a")) == (["/a"], b"hello")
    image = files.kill()
    image.remove("/a")


def test_a_write_can_stop_in_the_middle() -> None:
    left = set[bytes]()
    for seed in range(100):
        files = SimulatedFiles()
        file = durable(files, b"")
        files.stop_after(operations=1, rng=random.Random(seed))
        with pytest.raises(Crashed):
            file.write(0, [b"he", b"llo"])
        left.add(files.read("/a"))
        assert any(not files.crash(random.Random(seed)).size("/a") for seed in range(50)), "it is not durable"
    assert left == {b"", b"h", b"he", b"hel", b"hell", b"hello"}

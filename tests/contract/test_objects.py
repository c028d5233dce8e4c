"""What every object store owes an archive: whole objects, conditional puts with one winner, failures in time."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from sulina.errors import ArchiveFailed, InvalidSettings
from sulina.storage.objects import Objects, open_objects
from tests.support.objects import MemoryObjects
from tests.support.s3 import S3Server, s3

__all__ = ["s3"]  # a fixture

FAILS_WITHIN_SECONDS = 12.0  # a request and its retries, then a look at what became of it


def in_memory(request: pytest.FixtureRequest) -> Objects:
    return open_objects("memory://")


def of_the_tests(request: pytest.FixtureRequest) -> Objects:
    return MemoryObjects()


def in_a_directory(request: pytest.FixtureRequest) -> Objects:
    path: Path = request.getfixturevalue("tmp_path")
    return open_objects(f"file://{path}/not/there/yet")


def on_s3(request: pytest.FixtureRequest) -> Objects:
    server: S3Server = request.getfixturevalue("s3")
    request.getfixturevalue("monkeypatch").setenv("AWS_SKIP_SIGNATURE", "true")
    return open_objects(f"s3://sulina/{uuid4().hex}", endpoint=server.endpoint)


@pytest.fixture(params=[in_memory, of_the_tests, in_a_directory, on_s3], ids=lambda make: make.__name__)
def objects(request: pytest.FixtureRequest) -> Objects:
    make: Callable[[pytest.FixtureRequest], Objects] = request.param
    return make(request)


def got(objects: Objects, path: str) -> bytes | None:
    found = objects.get(path)
    return bytes(found) if found is not None else None


def test_what_was_put_in_parts_is_got_back_whole(objects: Objects) -> None:
    objects.put("t=a.b-part=0/x/1.log", [b"abc", memoryview(b"xdefx")[1:4], bytearray(b"g")])
    assert got(objects, "t=a.b-part=0/x/1.log") == b"abcdefg"
    objects.put("t=a.b-part=0/x/1.log", [b"other"])
    assert got(objects, "t=a.b-part=0/x/1.log") == b"other"


def test_large_objects_are_got_back_whole_and_by_range(objects: Objects) -> None:
    data = bytes(range(256)) * (20 << 12)  # 20 MiB: in parts where there are such
    objects.put("x/large", [data])
    assert got(objects, "x/large") == data
    found = objects.get_range("x/large", 1000, 5000)
    assert found is not None
    assert bytes(found) == data[1000:6000]


def test_what_is_not_there_is_none(objects: Objects) -> None:
    objects.put("x/there", [b"1"])
    assert objects.get("x/not") is None
    assert objects.get("y/not") is None
    assert objects.get_range("x/not", 0, 1) is None


def test_l3_of_two_different_puts_if_absent_the_first_wins_and_the_same_one_again_is_the_first(
    objects: Objects,
) -> None:
    assert objects.put_if_absent("x/1", b"first")
    assert not objects.put_if_absent("x/1", b"second")
    assert objects.put_if_absent("x/1", b"first"), "a put whose reply was lost is sent again"
    assert objects.put_if_absent("x/2", b"another name")
    assert got(objects, "x/1") == b"first"


def test_l3_of_many_at_once_exactly_one_wins(objects: Objects) -> None:
    barrier = threading.Barrier(4)

    def attempt(number: int) -> bool:
        barrier.wait(30)
        return objects.put_if_absent("x/contended", b"%d" % number)

    with ThreadPoolExecutor(max_workers=4) as threads:
        won = list(threads.map(attempt, range(4)))
    assert won.count(True) == 1
    assert got(objects, "x/contended") == b"%d" % won.index(True)


def test_a_folder_is_listed_with_sizes_and_times_and_nothing_else_is(objects: Objects) -> None:
    before = time.time()
    for name in ("x/a", "x/b/c", "xy/d", "z"):
        objects.put(name, [name.encode()])
    found = {listed.name: listed for listed in objects.list("x")}
    assert sorted(found) == ["a", "b/c"]
    assert found["b/c"].size == 5
    assert before - 120 < found["a"].modified < time.time() + 120
    assert objects.list("nothing") == []


def test_deleted_objects_are_gone_and_deleting_them_again_is_no_error(objects: Objects) -> None:
    for name in ("x/a", "x/b", "x/c", "y/a"):
        objects.put(name, [b"."])
    objects.delete(["x/a", "x/b", "x/never"])
    objects.delete(["x/a"])
    objects.delete([])
    assert [listed.name for listed in objects.list("x")] == ["c"]
    objects.delete_all("x")
    objects.delete_all("x")
    assert objects.list("x") == []
    assert got(objects, "y/a") == b"."
    objects.put("x/a", [b"again"])
    assert got(objects, "x/a") == b"again"


def test_commits_are_objects_in_a_folder(objects: Objects) -> None:
    commits = objects.commits("x/_delta_log")
    assert commits.list() == []
    assert commits.get("1") is None
    assert commits.put_if_absent("1", b"one")
    assert not commits.put_if_absent("1", b"two")
    assert commits.put_if_absent("2", b"two")
    assert commits.list(after="1") == ["2"]
    assert sorted(listed.name for listed in objects.list("x")) == ["_delta_log/1", "_delta_log/2"]
    commits.delete("1")
    commits.delete("1")
    assert commits.list() == ["2"]


# Failing


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    """A store that takes connections and says nothing."""
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setattr("sulina.storage.objects.SMALL_SECONDS", 1)
    monkeypatch.setattr("sulina.storage.objects.RETRY_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield open_objects("s3://bucket/prefix", endpoint=f"http://127.0.0.1:{listening.getsockname()[1]}")


def test_a_store_that_does_not_answer_fails_within_seconds(unanswered: Objects) -> None:
    for ask in (
        lambda: unanswered.put("x/1", [b"."]),
        lambda: unanswered.put_if_absent("x/1", b"."),
        lambda: unanswered.get_range("x/1", 0, 5),
    ):
        started = time.monotonic()
        with pytest.raises(ArchiveFailed, match="x/1") as failed:
            ask()
        assert time.monotonic() - started < FAILS_WITHIN_SECONDS
        assert failed.value.retryable
        assert "\n" not in str(failed.value)


def test_a_directory_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    objects = open_objects(f"file://{tmp_path}/file/objects")
    with pytest.raises(ArchiveFailed):
        objects.put("x/1", [b"."])
    with pytest.raises(ArchiveFailed):
        objects.commits("x").put_if_absent("1", b".")


@pytest.mark.parametrize(
    "url", ["", "bucket", "ftp://host/x", "s3://", "file://", "file:///", "file://host/dir", "http://host/bucket"]
)
def test_what_is_no_store_is_refused_with_a_hint(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"use (s3|file)://"):
        open_objects(url)


def test_clouds_are_chosen_by_url_and_nothing_is_asked_of_them_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    for url in ("s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix"):
        assert open_objects(url).location == url

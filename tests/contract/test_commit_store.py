"""One contract for every `CommitStore`: a directory, memory, a folder through obstore, and a real S3 server.

L3, L4: a name is put once, whole, and whoever comes second is told.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from obstore.store import LocalStore, MemoryStore

from sulina.core.log.commit import checkpoint_name, commit_name
from sulina.ports import CommitStore
from sulina.storage.commit_store import DirectoryCommits, ObjectCommits
from sulina.storage.files import OsFiles
from tests.support.s3 import S3Server, s3

__all__ = ["s3"]  # a fixture

PREFIX = "topic=default.orders-part=0/_delta_log"


def in_a_directory(request: pytest.FixtureRequest) -> CommitStore:
    path: Path = request.getfixturevalue("tmp_path")
    OsFiles().make_directory(str(path / PREFIX))
    return DirectoryCommits(OsFiles(), str(path / PREFIX))


def in_memory(request: pytest.FixtureRequest) -> CommitStore:
    return ObjectCommits(MemoryStore(), PREFIX)


def in_a_folder(request: pytest.FixtureRequest) -> CommitStore:
    return ObjectCommits(LocalStore(request.getfixturevalue("tmp_path")), PREFIX)


def on_s3(request: pytest.FixtureRequest) -> CommitStore:
    server: S3Server = request.getfixturevalue("s3")
    return ObjectCommits(server.store(), f"{uuid4().hex}/{PREFIX}")


@pytest.fixture(params=[in_a_directory, in_memory, in_a_folder, on_s3], ids=lambda make: make.__name__)
def store(request: pytest.FixtureRequest) -> CommitStore:
    make: Callable[[pytest.FixtureRequest], CommitStore] = request.param
    return make(request)


def test_it_says_where_it_is(store: CommitStore) -> None:
    assert store.location.endswith(PREFIX)


def test_what_was_put_is_got_back_whole(store: CommitStore) -> None:
    data = bytes(range(256)) * 1000
    assert store.put_if_absent(commit_name(0), data)
    assert store.get(commit_name(0)) == data


def test_what_was_put_empty_is_got_back_empty(store: CommitStore) -> None:
    assert store.put_if_absent("empty", b"")
    assert store.get("empty") == b""


def test_l3_a_second_put_is_refused_and_the_first_bytes_stay(store: CommitStore) -> None:
    assert store.put_if_absent(commit_name(1), b"first")
    assert not store.put_if_absent(commit_name(1), b"second")
    assert not store.put_if_absent(commit_name(1), b"third, and longer than the first")
    assert store.get(commit_name(1)) == b"first"


def test_a_missing_name_is_none(store: CommitStore) -> None:
    assert store.get(commit_name(7)) is None
    store.put_if_absent(commit_name(6), b"6")
    assert store.get(commit_name(7)) is None


def test_an_empty_store_lists_nothing(store: CommitStore) -> None:
    assert store.list() == []
    assert store.list(after=commit_name(3)) == []


def test_names_come_sorted_whatever_the_order_of_puts(store: CommitStore) -> None:
    names = [commit_name(11), "_last_checkpoint", commit_name(9), checkpoint_name(10), commit_name(10), commit_name(0)]
    for name in names:
        assert store.put_if_absent(name, name.encode())
    assert store.list() == sorted(names)


def test_a_listing_after_a_name_is_strict(store: CommitStore) -> None:
    names = [checkpoint_name(10), *(commit_name(version) for version in range(9, 13))]
    for name in names:
        store.put_if_absent(name, b".")
    assert store.list(after=commit_name(10)) == [commit_name(11), commit_name(12)]
    # The hint of the commit log: from the checkpoint of version 10 on, which sorts before its commit.
    assert store.list(after=f"{10:020d}") == [checkpoint_name(10), commit_name(10), commit_name(11), commit_name(12)]
    assert store.list(after=commit_name(12)) == []


def test_a_listing_is_complete_past_a_chunk(store: CommitStore) -> None:
    names = [commit_name(version) for version in range(120)]  # obstore hands them out by 50
    for name in reversed(names):
        store.put_if_absent(name, b".")
    assert store.list() == names
    assert store.list(after=names[99]) == names[100:]


def test_a_listing_of_s3_is_complete_past_a_page(s3: S3Server) -> None:
    commits = ObjectCommits(s3.store(), f"{uuid4().hex}/{PREFIX}")
    names = [commit_name(version) for version in range(1010)]  # a page of S3 has 1,000
    with ThreadPoolExecutor(max_workers=8) as threads:
        assert all(threads.map(lambda name: commits.put_if_absent(name, b"."), reversed(names)))
    assert commits.list() == names
    assert commits.list(after=names[4]) == names[5:]


def test_what_is_deleted_is_gone_and_can_be_put_again(store: CommitStore) -> None:
    for version in range(3):
        store.put_if_absent(commit_name(version), b"old")
    store.delete(commit_name(1))
    assert store.get(commit_name(1)) is None
    assert store.list() == [commit_name(0), commit_name(2)]
    assert store.put_if_absent(commit_name(1), b"new")
    assert store.get(commit_name(1)) == b"new"


def test_deleting_what_is_not_there_is_no_error(store: CommitStore) -> None:
    store.delete(commit_name(5))
    store.put_if_absent(commit_name(5), b".")
    store.delete(commit_name(5))
    store.delete(commit_name(5))
    assert store.list() == []


def test_another_prefix_is_another_store() -> None:
    objects = MemoryStore()
    one, other = ObjectCommits(objects, "topic=a.b-part=1"), ObjectCommits(objects, "topic=a.b-part=10")
    assert one.put_if_absent(commit_name(0), b"one")
    assert other.put_if_absent(commit_name(0), b"other")
    assert (one.list(), one.get(commit_name(0))) == ([commit_name(0)], b"one")
    assert other.get(commit_name(0)) == b"other"

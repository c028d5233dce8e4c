"""What a broker keeps of its archives in memory: bounded, and fetched once."""

import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from sulina.errors import ArchiveFailed
from sulina.storage.archive_cache import ArchiveCache


class Counted:
    """Fetches a block, and counts how often."""

    def __init__(self, size: int = 100) -> None:
        self.count = 0
        self._size = size

    def __call__(self) -> memoryview:
        self.count += 1
        return memoryview(bytes(self._size))


def test_a_block_is_fetched_once_while_it_is_kept() -> None:
    cache, fetch = ArchiveCache(1000), Counted()
    for _ in range(3):
        assert cache.get(("o", 0), fetch) is not None
    assert fetch.count == 1


def test_the_longest_unused_go_when_there_is_no_room() -> None:
    cache = ArchiveCache(250)
    fetches = {name: Counted() for name in "abc"}
    for name in "ababcab":
        cache.get((name, 0), fetches[name])
        assert cache.size_bytes <= 250
    assert {name: fetch.count for name, fetch in fetches.items()} == {"a": 2, "b": 2, "c": 1}


def test_what_is_larger_than_the_cache_is_served_and_not_kept() -> None:
    cache, fetch = ArchiveCache(50), Counted(100)
    for _ in range(3):
        found = cache.get(("o", 0), fetch)
        assert found is not None
        assert len(found) == 100
    cache.get(("p", 0), Counted(10))
    assert cache.size_bytes <= 110


def test_what_is_not_there_and_what_fails_is_asked_for_again() -> None:
    cache = ArchiveCache(1000)
    assert cache.get(("o", 0), lambda: None) is None

    def fail() -> memoryview:
        raise ArchiveFailed(path="o", cause=OSError("no"))

    with pytest.raises(ArchiveFailed):
        cache.get(("o", 0), fail)
    assert cache.get(("o", 0), Counted()) is not None


def test_a_second_reader_waits_for_what_is_being_fetched() -> None:
    cache, fetch = ArchiveCache(1000), Counted()
    begun, go = threading.Event(), threading.Event()

    def slowly() -> memoryview:
        begun.set()
        assert go.wait(30)
        return fetch()

    with ThreadPoolExecutor(max_workers=3) as threads:
        first = threads.submit(cache.get, ("o", 0), slowly)
        assert begun.wait(30)
        others = [threads.submit(cache.get, ("o", 0), slowly) for _ in range(2)]
        go.set()
        assert all(len(future.result(30) or b"") == 100 for future in [first, *others])
    assert fetch.count == 1


class Queued(Executor):
    """Threads that are all busy."""

    def __init__(self) -> None:
        self.work: list[tuple[Any, ...]] = []

    def submit(self, *work: Any) -> Future[Any]:  # type: ignore[override]
        self.work.append(work)
        return Future()


def test_what_is_only_queued_is_not_waited_for() -> None:
    cache, fetch, threads = ArchiveCache(1000), Counted(), Queued()
    cache.fetch_ahead(("o", 0), fetch, threads)
    cache.fetch_ahead(("o", 0), fetch, threads)
    assert len(threads.work) == 1
    assert cache.get(("o", 0), fetch) is not None
    [(run, *arguments)] = threads.work
    run(*arguments)  # its turn comes at last: there is nothing left to do
    assert fetch.count == 1


def test_a_fetch_ahead_that_fails_bothers_nobody() -> None:
    cache = ArchiveCache(1000)

    def fail() -> memoryview:
        raise ArchiveFailed(path="o", cause=OSError("no"))

    with ThreadPoolExecutor(max_workers=1) as threads:
        cache.fetch_ahead(("o", 0), fail, threads)
    assert cache.get(("o", 0), Counted()) is not None
    cache.fetch_ahead(("p", 0), fail, threads)  # which have ended
    assert cache.get(("p", 0), Counted()) is not None

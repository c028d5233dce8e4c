"""Object stores for tests: one in memory, and one that loses requests and replies, is slow, or dies with its broker."""

import random
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from sulina.clock import SystemClock
from sulina.errors import ArchiveFailed
from sulina.ports import Bytes, Clock, CommitStore
from sulina.storage.objects import Listed, Objects

Names = list[str]
Result = TypeVar("Result")


class MemoryObjects:
    """What several brokers share. `modified` is by its own clock."""

    location = "memory://test"

    def __init__(self, clock: Clock | None = None) -> None:
        self.held: dict[str, tuple[bytes, float]] = {}
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()

    def put(self, path: str, data: Sequence[Bytes]) -> None:
        with self._lock:
            self.held[path] = (b"".join(data), self._clock.now())

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with self._lock:
            if path in self.held:
                return self.held[path][0] == data
            self.held[path] = (data, self._clock.now())
            return True

    def get(self, path: str) -> memoryview | None:
        found = self.held.get(path)
        return memoryview(found[0]) if found is not None else None

    def get_range(self, path: str, start: int, size: int) -> memoryview | None:
        found = self.get(path)
        return found[start : start + size] if found is not None else None

    def list(self, prefix: str) -> list[Listed]:
        with self._lock:
            return [
                Listed(path.removeprefix(f"{prefix}/"), len(data), modified)
                for path, (data, modified) in self.held.items()
                if path.startswith(f"{prefix}/")
            ]

    def folders(self, prefix: str = "") -> Names:
        start = f"{prefix}/" if prefix else ""
        with self._lock:
            below = [path.removeprefix(start) for path in self.held if path.startswith(start)]
        return sorted({path.split("/")[0] for path in below if "/" in path})

    def delete(self, paths: Sequence[str]) -> None:
        with self._lock:
            for path in paths:
                self.held.pop(path, None)

    def delete_all(self, prefix: str) -> None:
        self.delete([f"{prefix}/{listed.name}" for listed in self.list(prefix)])

    def commits(self, path: str) -> CommitStore:
        return ObjectsAsCommits(self, path)

    def names(self, ending: str = "") -> Names:
        return sorted(path for path in self.held if path.endswith(ending))


class ObjectsAsCommits:
    """A commit store on any objects, so that whatever goes wrong with those goes wrong here too."""

    def __init__(self, objects: Objects, path: str) -> None:
        self.location = path
        self._objects = objects

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._objects.put_if_absent(f"{self.location}/{name}", data)

    def get(self, name: str) -> bytes | None:
        found = self._objects.get(f"{self.location}/{name}")
        return bytes(found) if found is not None else None

    def list(self, after: str = "") -> Names:
        return sorted(listed.name for listed in self._objects.list(self.location) if listed.name > after)

    def delete(self, name: str) -> None:
        self._objects.delete([f"{self.location}/{name}"])


class FaultyObjects:
    """One broker's way to a store that others share.

    A request may not get there, get there without its reply coming back, or get there much later, when `deliver` is
    called: after others have written. A dead broker's requests go nowhere.
    """

    def __init__(self, objects: Objects, rng: random.Random, late: list[Callable[[], object]]) -> None:
        self.location = objects.location
        self.is_dead = False
        self.is_cut = False  # nothing gets there
        self.rate = 0.0  # of requests that go wrong
        self.calls: list[str] = []
        self._objects = objects
        self._rng = rng
        self._late = late

    def put(self, path: str, data: Sequence[Bytes]) -> None:
        whole = [b"".join(data)]
        self._ask("put", path, lambda: self._objects.put(path, whole), is_change=True)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        try:
            return self._ask("put_if_absent", path, lambda: self._objects.put_if_absent(path, data), is_change=True)
        except ArchiveFailed:
            # As the real ones: the outcome is found out, if that is possible.
            found = self.get(path)
            if found is None:
                raise
            return bytes(found) == data

    def get(self, path: str) -> memoryview | None:
        return self._ask("get", path, lambda: self._objects.get(path))

    def get_range(self, path: str, start: int, size: int) -> memoryview | None:
        return self._ask("get_range", path, lambda: self._objects.get_range(path, start, size))

    def list(self, prefix: str) -> list[Listed]:
        return self._ask("list", prefix, lambda: self._objects.list(prefix))

    def folders(self, prefix: str = "") -> Names:
        return self._ask("folders", prefix, lambda: self._objects.folders(prefix))

    def delete(self, paths: Sequence[str]) -> None:
        self._ask("delete", str(paths), lambda: self._objects.delete(paths), is_change=True)

    def delete_all(self, prefix: str) -> None:
        self._ask("delete_all", prefix, lambda: self._objects.delete_all(prefix), is_change=True)

    def commits(self, path: str) -> CommitStore:
        return ObjectsAsCommits(self, path)

    def _ask(self, name: str, path: str, request: Callable[[], Result], *, is_change: bool = False) -> Result:
        self.calls.append(f"{name} {path}")
        if self.is_dead or self.is_cut:
            raise _failed(path, "no answer")
        if self._rng.random() >= self.rate:
            return request()
        fault = self._rng.choice(["request", "reply", "late"]) if is_change else "request"
        if fault == "request":
            raise _failed(path, "the request was lost")
        if fault == "late":
            self._late.append(request)
            raise _failed(path, "no answer yet")
        request()
        raise _failed(path, "the reply was lost")


def _failed(path: str, reason: str) -> ArchiveFailed:
    return ArchiveFailed(path=path, cause=OSError(reason))

"""A cache of blocks of archived objects, with a limit on its bytes.

An object never changes, so a block stays valid while it is cached. A call that needs a block which another thread is
fetching waits for that one.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future

Key = tuple[str, int]  # the unique path of an object, and the number of the block
Fetch = Callable[[], memoryview | None]


class ArchiveCache:
    """The blocks that a broker has read lately; shared by all its archives, and used from any thread."""

    def __init__(self, bytes_max: int = 64 << 20) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Key, Future[memoryview | None]] = OrderedDict()  # longest unused first
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """Size of the cached blocks; those being fetched are not counted."""
        return self._bytes

    def get(self, key: Key, fetch: Fetch) -> memoryview | None:
        """Return a block, fetched if it is not cached; None if the object does not exist. Raises errors of `fetch`."""
        with self._lock:
            block = self._blocks.get(key)
            # A fetch that is still queued is not waited for: it may run only after ours.
            is_ours = block is None or block.cancel()
            if block is None or is_ours:
                block = self._blocks[key] = Future()
                block.set_running_or_notify_cancel()
            self._blocks.move_to_end(key)
        return self._fetch(key, block, fetch) if is_ours else block.result()

    def fetch_ahead(self, key: Key, fetch: Fetch, threads: Executor) -> None:
        """Fetch a block in another thread, if it is not cached: it will be needed soon."""
        with self._lock:
            if key in self._blocks:
                return
            block = self._blocks[key] = Future()
        try:
            threads.submit(self._fetch_quietly, key, block, fetch)
        except RuntimeError:  # the threads have ended
            block.cancel()
            self._drop(key)

    def _fetch_quietly(self, key: Key, block: "Future[memoryview | None]", fetch: Fetch) -> None:
        if not block.set_running_or_notify_cancel():
            return
        try:
            self._fetch(key, block, fetch)
        except Exception:  # noqa: BLE001
            return  # a call that needs the block fetches it again, and gets the error

    def _fetch(self, key: Key, block: "Future[memoryview | None]", fetch: Fetch) -> memoryview | None:
        try:
            data = fetch()
        except BaseException as error:
            self._drop(key)
            block.set_exception(error)
            raise
        if data is None:
            self._drop(key)
        else:
            self._keep(len(data))
        block.set_result(data)
        return data

    def _drop(self, key: Key) -> None:
        with self._lock:
            self._blocks.pop(key, None)

    def _keep(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            while self._bytes > self.bytes_max:
                oldest = next((key for key, block in self._blocks.items() if block.done()), None)
                if oldest is None:
                    return
                found = self._blocks.pop(oldest).result()
                self._bytes -= len(found) if found is not None else 0

"""What a broker has lately read from its archives: blocks of objects, up to so many bytes in all.

An object never changes, so a block is right for as long as it is kept. Whoever wants a block that somebody is already
fetching waits for that one.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future

Key = tuple[str, int]  # an object's path, which is no other's, and the number of the block
Fetch = Callable[[], memoryview | None]


class ArchiveCache:
    """Shared by all archives of a broker; from any thread."""

    def __init__(self, bytes_max: int = 64 << 20) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Key, Future[memoryview | None]] = OrderedDict()  # longest unused first
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """How much it holds; what is being fetched is not counted."""
        return self._bytes

    def get(self, key: Key, fetch: Fetch) -> memoryview | None:
        """The block, fetched if need be; None when there is no such object. Whatever `fetch` raises."""
        with self._lock:
            block = self._blocks.get(key)
            # One that is still queued is not waited for: its turn may come only after ours.
            is_ours = block is None or block.cancel()
            if block is None or is_ours:
                block = self._blocks[key] = Future()
                block.set_running_or_notify_cancel()
            self._blocks.move_to_end(key)
        return self._fetch(key, block, fetch) if is_ours else block.result()

    def fetch_ahead(self, key: Key, fetch: Fetch, threads: Executor) -> None:
        """Let the block be fetched by another thread, if it is not there: somebody will want it soon."""
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
            return  # whoever wants it tries again, and is told

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

"""Starts Java for Spark, and holds back what it says until there is a session.

Java and its libraries warn of what no user can change, before any setting of Spark's is read. When the start succeeds
that is forgotten; when it fails it is all there is to know, and shown. From then on everything is passed on.
"""

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import IO

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

LINES_MAX = 1000
LAST_WORDS_SECONDS_MAX = 2.0


class _Words(threading.Thread):
    """A thread that reads what Java prints until Java ends."""

    def __init__(self, pipe: IO[str]) -> None:
        super().__init__(name="sulina-java-says", daemon=True)
        self._pipe = pipe
        self._held: deque[str] | None = deque(maxlen=LINES_MAX)
        self._lock = threading.Lock()

    def run(self) -> None:
        for line in self._pipe:
            with self._lock:
                if self._held is None:
                    sys.stderr.write(line)
                else:
                    self._held.append(line)

    def release(self, *, is_shown: bool) -> None:
        if is_shown:
            self.join(LAST_WORDS_SECONDS_MAX)
        with self._lock:
            if is_shown:
                sys.stderr.writelines(self._held or ())
            self._held = None


@contextlib.contextmanager
def holding_back(settings: Mapping[str, str]) -> Iterator[None]:
    """Hold back what Java prints while it starts inside this context; do nothing if it runs already."""
    if SparkContext._gateway is not None:  # noqa: SLF001
        yield
        return
    reading, writing = os.pipe()
    words = _Words(os.fdopen(reading, encoding="utf-8", errors="replace"))
    words.start()
    is_started = False
    try:
        try:
            conf = SparkConf().setAll(list(settings.items()))
            gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
        finally:
            os.close(writing)
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001
        yield
        is_started = True
    finally:
        words.release(is_shown=not is_started)

"""An event loop whose time passes only when everybody waits for it: tests of minutes take milliseconds."""

import asyncio
import selectors

THREADS_SECONDS = 10.0  # how long only another thread can go on


class _Selector(selectors.DefaultSelector):
    """Instead of waiting, time goes on."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = super().select(THREADS_SECONDS)
            assert ready, "everybody waits, and nothing will happen"
            return ready
        self.loop.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`now` is the only clock."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

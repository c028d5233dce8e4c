"""Command `sulina cluster start`: start a local cluster, show it, stop it."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from sulina.cli import terminal
from sulina.cli.cluster.chronicle import Chronicle
from sulina.cli.cluster.local import LocalCluster, fetched
from sulina.json_values import decode_json
from sulina.waiting import wait_or_timeout

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sulina.wire.messages import ClusterInfo

LOOK_SECONDS = 0.5
ANSWER_SECONDS_MAX = 2.0


class ClusterRun:
    """One cluster, shown until it is told to stop."""

    def __init__(self, cluster: LocalCluster, *, as_json: bool) -> None:
        self._cluster = cluster
        self._as_json = as_json
        self._chronicle = Chronicle()
        self._stopping = asyncio.Event()
        self._started = time.monotonic()
        self._is_stale = False  # no broker answers

    async def run(self) -> None:
        """Start the cluster, show it until a signal, and stop it; raises NotServing if it does not start."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            if self._stopping.is_set():
                task.cancel()  # a second signal does not wait; acknowledged records are durable
            self._stopping.set()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop)
        self._cluster.on_event = self._note
        self._say(f"starting etcd and {terminal.counted(len(self._cluster.brokers), 'broker')} …")
        try:
            starting = asyncio.ensure_future(self._cluster.start())
            stopping = asyncio.ensure_future(self._stopping.wait())
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await self._show()
            else:
                starting.cancel()
                await asyncio.wait({starting})
            stopping.cancel()
            self._say("stopping: the brokers archive their records; press Ctrl-C again to stop at once")
            await self._cluster.stop()
        except BaseException:
            await self._cluster.kill()
            raise
        self._say(f"stopped; the data is kept in {self._cluster.directory}")

    async def _show(self) -> None:
        self._tell_ready()
        with self._drawing() as draw:
            while not self._stopping.is_set():
                found = await asyncio.to_thread(self._look)
                self._is_stale = found is None
                if found is not None:
                    for text in self._chronicle.see(found, self._seconds):
                        self._line(text)
                draw()
                await wait_or_timeout(self._stopping, LOOK_SECONDS)

    def _look(self) -> "ClusterInfo | None":
        """Return the state of the cluster by the first broker that answers; None if none does."""
        from sulina.wire.messages import ClusterInfo

        for broker in self._cluster.brokers:
            if broker.is_ready:
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    body = fetched(f"{broker.url}/v1/cluster", ANSWER_SECONDS_MAX)
                    return decode_json(body, ClusterInfo)
        return None

    # Output

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _note(self, text: str) -> None:
        self._line(self._chronicle.note(text, self._seconds))

    def _line(self, text: str) -> None:
        """Print an event as a line, if there is no screen that shows it."""
        if not self._as_json and not sys.stdout.isatty():
            terminal.done(f"{self._seconds:7.1f} s  {text}")
            sys.stdout.flush()

    def _say(self, text: str) -> None:
        if not self._as_json:
            terminal.say(text)

    def _tell_ready(self) -> None:
        if self._as_json:
            terminal.print_json(
                {
                    "data": self._cluster.directory,
                    "etcd": {"url": self._cluster.etcd.url, "pid": self._cluster.etcd.pid},
                    "brokers": [
                        {"broker_id": broker.name, "url": broker.url, "pid": broker.pid}
                        for broker in self._cluster.brokers
                    ],
                }
            )
            return
        from sulina.cli.cluster import view

        terminal.print_block(view.next_steps(self._cluster, terminal.program()))

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[Callable[[], None]]:
        if self._as_json or not sys.stdout.isatty():
            yield lambda: None
            return
        from rich.live import Live

        with Live(console=terminal.console(), auto_refresh=False) as live:
            yield lambda: live.update(self._screen(), refresh=True)

    def _screen(self) -> "RenderableType":
        from sulina.cli.cluster import view

        return view.screen(self._cluster, self._chronicle, is_stale=self._is_stale, seconds=self._seconds)

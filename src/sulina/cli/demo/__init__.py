"""Command `sulina demo`: a node that takes records, is killed in the middle, and loses none that it acknowledged.

Then a pipeline makes tables of the topic while it grows, and the demo queries them.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from sulina.cli import terminal
from sulina.cli.flags.remote import client_for
from sulina.errors import InvalidSettings
from sulina.waiting import wait_or_timeout

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sulina.cli.demo.tables import DemoPipeline, Revenue
    from sulina.client import Client

KILL_AT = 0.4  # share of the demo's time
KILL_SECONDS_MAX = 5.0
STEADY_SECONDS, AFTER_SECONDS = 1.0, 3.0  # after a restart: until latencies count again; until the traffic may end
DRAW_SECONDS = 0.125
LINE_SECONDS = 1.0


def demo(
    *,
    seconds: Annotated[float, Parameter(validator=validators.Number(gte=0))] = 12,
    rate: Annotated[float, Parameter(validator=validators.Number(gt=0, lte=50_000))] = 1000,
    data: Annotated[
        str | None,
        Parameter(
            help="New directory for the node, the tables and pipeline.toml, which is kept. Default: a temporary "
            "directory, which is removed at the end."
        ),
    ] = None,
    no_tables: bool = False,
    exit_: Annotated[bool, Parameter(name="--exit")] = False,
    svg: str | None = None,
    json: bool = False,
) -> int:
    """Watch a node at work: it takes records, is killed in the middle, and loses none of them.

    Parameters
    ----------
    seconds
        Time during which records are produced; 0 runs until Ctrl-C.
    rate
        Records per second.
    no_tables
        Skip the Delta Lake tables that a pipeline on Spark makes at the end.
    exit_
        Exit after the summary instead of serving on. Default if standard output is not a terminal.
    svg
        Save the last screen to this file as an SVG picture.
    json
        Print the summary as JSON, and nothing else on standard output.

    Raises:
        InvalidSettings: --data is not an empty directory.
    """
    if data is not None and os.path.exists(data) and (not os.path.isdir(data) or os.listdir(data)):
        raise InvalidSettings(f"--data {data} is not an empty directory, which the demo needs")
    root = tempfile.mkdtemp(prefix="sulina-demo-") if data is None else data
    serves_on = sys.stdout.isatty() and not exit_ and not json
    show = Show(seconds=seconds, rate=rate, root=Path(root).absolute(), serves_on=serves_on)
    show.is_silent = json
    show.has_tables = not no_tables
    show.svg = svg
    try:
        return asyncio.run(show.run())
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    finally:
        if data is None:
            shutil.rmtree(root, ignore_errors=True)


class Show:
    """The demo from its start to its end."""

    def __init__(self, *, seconds: float, rate: float, root: Path, serves_on: bool) -> None:
        from sulina.cli.demo.node import ANY_PORT, ChildNode, usual_address
        from sulina.cli.demo.tally import Tally

        (root / "node").mkdir(parents=True, exist_ok=True)
        self.is_silent = False  # except for the summary as JSON
        self.has_tables = True
        self.svg: str | None = None
        self._seconds, self._rate = seconds, rate
        self._until = seconds
        self._serves_on = serves_on
        self._root = root
        self._pipeline: DemoPipeline | None = None
        self._answer: list[Revenue] = []
        self._node = ChildNode(str(root / "node"), usual_address() if serves_on else ANY_PORT)
        self._tally = Tally()
        self._ending = asyncio.Event()
        self._interrupted = asyncio.Event()

    async def run(self) -> int:
        """Run the demo, and return the exit code: 0 if every check has passed."""
        from sulina.cli.demo.node import READY_SECONDS_MAX
        from sulina.client import ClientOptions

        self._handle_signals()
        try:
            self._say("starting a node … (the first start compiles its kernels, which takes some seconds)")
            await self._node.start()
            options = ClientOptions(timeout_seconds=READY_SECONDS_MAX, backoff_seconds_max=0.5)
            async with client_for(self._node.url, options) as client:
                faults = await self._play(client)
            self._conclude(faults)
            if self._serves_on and not self._interrupted.is_set():
                terminal.say("the node is still serving; Ctrl-C stops it")
                await self._interrupted.wait()
            return 1 if faults else 0
        finally:
            if self._pipeline is not None:
                await self._pipeline.stop()
            await self._node.stop()

    def _handle_signals(self) -> None:
        """Handle signals: Ctrl-C ends the traffic, a second one ends the demo; so does SIGTERM or a closed terminal."""
        task = asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            if self._interrupted.is_set():
                task.cancel()
            self._interrupted.set()
            self._ending.set()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)

    async def _play(self, client: "Client") -> list[str]:
        """Produce and consume while the node is killed, then check, and return the faults."""
        from sulina.cli.demo import traffic
        from sulina.cli.demo.tally import Tally

        await client.admin.create_topic(traffic.TOPIC, partitions=traffic.PARTITIONS, schema=traffic.SCHEMA)
        self._tally = tally = Tally()
        self._note(f"node started in {self._node.start_seconds:.1f} s")
        with self._drawing() as draw:
            async with asyncio.TaskGroup() as tasks:
                lanes = [
                    tasks.create_task(
                        traffic.produce(client, lane, self._rate, tally, self._ending), name=f"lane-{lane}"
                    )
                    for lane in range(traffic.LANES)
                ]
                consumer = tasks.create_task(traffic.consume(client, tally), name="consumer")
                drawer = tasks.create_task(self._draw(draw), name="drawer")
                await self._kill_in_the_middle()
                await self._wait_ending(self._remaining())
                await self._begin_tables()
                self._ending.set()
                tally.freeze()
                await asyncio.gather(*lanes)
                await traffic.wait_drained(tally)
                consumer.cancel()
                faults = await self._end_tables()
                drawer.cancel()
            stored = await traffic.read_all(client)
            faults += tally.faults(stored)
            self._note("read every record from the log again, and checked it")
            draw()
        return faults

    async def _begin_tables(self) -> None:
        """Start a pipeline beside the traffic, and wait until its tables exist."""
        from sulina.cli.demo.tables import DemoPipeline, why_not

        if not self.has_tables or self._ending.is_set():
            return
        if (reason := await asyncio.to_thread(why_not)) is not None:
            self._note(f"no tables: {reason}")
            return
        self._tally.is_steady = False  # Spark's start takes all cores
        self._until = self._tally.seconds
        self._pipeline = DemoPipeline(self._root, self._node.url)
        await self._pipeline.start()
        self._note("starting Spark, which makes Delta Lake tables of the topic while it grows")
        await self._pipeline.wait_for_tables()
        self._note("the tables exist, and grow with the topic")

    async def _end_tables(self) -> list[str]:
        """Read the gold table, and return the faults."""
        if self._pipeline is None:
            return []
        acked = self._tally.acked.total
        self._answer = await self._pipeline.answer(acked)
        orders = sum(row.orders for row in self._answer)
        if orders != acked:
            return [f"the tables have {orders:,} orders, but {acked:,} were acknowledged"]
        self._note(f"the tables have all {acked:,} orders, each once")
        return []

    async def _kill_in_the_middle(self) -> None:
        """Kill the node, and start a new process on the same data and port. The client is not told."""
        moment = min(KILL_AT * self._seconds or KILL_SECONDS_MAX, KILL_SECONDS_MAX)
        if await self._wait_ending(moment - self._tally.seconds):
            return
        self._tally.is_steady = False
        pid = self._node.pid
        await self._node.kill()
        acked = self._tally.acked.total
        self._note(f"kill -9 {pid}, after {acked:,} acknowledged records")
        await self._node.start()
        self._note(f"a new process serves the same data after {self._node.start_seconds:.1f} s")
        await self._tally.wait_until(lambda: self._tally.acked.total > acked)
        self._note("the client has reconnected, and continues")
        self._until = max(self._until, self._tally.seconds + AFTER_SECONDS)
        await self._wait_ending(STEADY_SECONDS)
        self._tally.is_steady = True

    async def _wait_ending(self, seconds: float | None) -> bool:
        """Wait, without a limit for None, and return whether the end was called for before the time was over."""
        return await wait_or_timeout(self._ending, None if seconds is None else max(seconds, 0))

    # Output

    def _say(self, text: str) -> None:
        if not self.is_silent:
            terminal.say(text)

    def _note(self, text: str) -> None:
        self._tally.note(text)
        if not self.is_silent and not sys.stdout.isatty():
            terminal.done(f"{self._tally.seconds:5.1f} s  {text}")
            sys.stdout.flush()

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[Callable[[], None]]:
        """Yield a function that shows the current state: a screen in a terminal, else a line."""
        from sulina.cli.demo import view

        if self.is_silent:
            yield lambda: None
        elif not sys.stdout.isatty():
            yield lambda: terminal.done(view.line(self._node, self._tally))
        else:
            from rich.live import Live

            with Live(console=terminal.console(), auto_refresh=False) as live:
                yield lambda: live.update(self._screen(), refresh=True)

    def _screen(self) -> "RenderableType":
        from sulina.cli.demo import view

        tables = self._pipeline.progress if self._pipeline is not None else []
        return view.screen(self._node, self._tally, tables, remaining=self._remaining())

    def _remaining(self) -> float | None:
        return self._until - self._tally.seconds if self._seconds else None

    async def _draw(self, draw: Callable[[], None]) -> None:
        pause = DRAW_SECONDS if sys.stdout.isatty() else LINE_SECONDS
        while True:
            draw()
            sys.stdout.flush()
            await asyncio.sleep(pause)

    def _conclude(self, faults: list[str]) -> None:
        from sulina.cli.demo import view

        if self.is_silent:
            terminal.print_json(view.summary(self._node, self._tally, self._answer, faults))
        else:
            terminal.console().print(view.verdict(self._node, self._tally, self._answer, faults))
            if self._serves_on and not self._interrupted.is_set():
                pipeline = self._pipeline.file if self._pipeline is not None else None
                terminal.console().print(view.next_steps(self._node.url, terminal.program(), pipeline))
        if self.svg:
            view.save_svg(self.svg, self._screen(), view.verdict(self._node, self._tally, self._answer, faults))

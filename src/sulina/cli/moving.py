"""Partitions on their way from one broker to another: what a command sees of it, and how it shows it.

A partition has arrived when it is served under a higher epoch than before. What was asked for goes on until then,
whether anybody watches or not.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sulina.cli import terminal
from sulina.errors import SulinaError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sulina.client import Client
    from sulina.wire.messages import PartitionPlacement, Placement, UnloadInfo

POLL_SECONDS = 0.03  # a step may be over soon
LATE_SECONDS = 3.0  # after which a wish that has gone, with its partition where it was, counts as refused

STEPS = ("requested", "quiesced", "paused", "sealed", "unassigned", "moved")
MOVED = STEPS[-1]
UNASSIGNED = "unassigned"
RECOVERING = "recovering"
REFUSED = "refused"


@dataclass(slots=True, kw_only=True)
class PartitionMove:
    """One partition's."""

    topic: str
    partition: int
    from_broker: str | None
    to_broker: str | None
    epoch: int  # before
    step: str = STEPS[0]
    error: str | None = None
    given_up: tuple[int, int] | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # when each step was first seen, since it was asked for
    gone_seconds: float | None = None  # since when nothing is known of it

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it by itself."""
        return self.step in (MOVED, RECOVERING, REFUSED)

    def see(self, under_way: "UnloadInfo | None", place: "PartitionPlacement", seconds: float) -> bool:
        """What there is to be seen now; whether it is something new."""
        before = (self.step, self.error)
        if place.state == "active" and place.epoch > self.epoch:
            self.step, self.error, self.to_broker = MOVED, None, place.broker_id
        elif under_way is not None:
            self.step, self.error = under_way.step, under_way.error
            self.given_up = self.given_up or under_way.given_up
            self.gone_seconds = None
            if self.step == RECOVERING:
                start, end = under_way.given_up or (None, None)
                what = (
                    "what is not archived" if start is None else f"what follows offset {start} (up to {end}, it said)"
                )
                self.error = f"broker {under_way.from_broker} died, and alone has {what}"
        elif place.broker_id is None:
            self.step, self.gone_seconds = UNASSIGNED, None
        else:
            self.gone_seconds = seconds if self.gone_seconds is None else self.gone_seconds
            if seconds - self.gone_seconds > LATE_SECONDS:
                self.step, self.error = REFUSED, f"broker {place.broker_id} keeps it; were consumers attached?"
        self.seconds.setdefault(self.step, round(seconds, 3))
        return before != (self.step, self.error)

    def line(self) -> str:
        """For a log."""
        told = f"{self.seconds[self.step]:6.2f} s  partition {self.partition}: {self.step}"
        if self.step == MOVED:
            told += f" to {self.to_broker}"
        return f"{told}: {self.error}" if self.error else told

    def summary(self) -> dict[str, Any]:
        """For programs."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "from_broker": self.from_broker,
            "to_broker": self.to_broker,
            "step": self.step,
            "error": self.error,
            "given_up": self.given_up,
            "seconds": self.seconds,
        }


def begun(asked: "Iterable[UnloadInfo]", before: "Placement") -> list[PartitionMove]:
    """What was asked for, and how it was before."""
    epochs = {place.partition: place.epoch for place in before.partitions}
    return [
        PartitionMove(
            topic=info.topic,
            partition=info.partition,
            from_broker=info.from_broker,
            to_broker=info.to_broker,
            epoch=epochs[info.partition],
            step=info.step,
            error=info.error,
            given_up=info.given_up,
            seconds={info.step: 0.0},
        )
        for info in asked
    ]


async def watch(client: "Client", topic: str, moves: list[PartitionMove], *, since: float, is_silent: bool) -> None:
    """Show how partitions go, until each has arrived or will not. Whoever has had enough leaves it to itself.

    `since` is when it was asked for, by the monotonic clock.
    """
    try:
        with drawing(lambda: table(moves), is_silent=is_silent) as draw:
            draw()
            for move in moves:
                _tell(move, is_silent=is_silent)
            while True:
                under_way = {info.partition: info for info in await client.admin.moves(topic)}
                places = (await client.admin.placement(topic)).partitions
                for move in moves:
                    seconds = time.monotonic() - since
                    if not move.is_over and move.see(under_way.get(move.partition), places[move.partition], seconds):
                        _tell(move, is_silent=is_silent)
                draw()
                if all(move.is_over for move in moves):
                    return
                await asyncio.sleep(POLL_SECONDS)
    except asyncio.CancelledError:
        terminal.say(f"it goes on by itself; see `sulina topic lookup {topic}`")
        raise
    except SulinaError as error:
        error.add_note(f"what was asked for may go on by itself; see `sulina topic lookup {topic}`")
        raise


def _tell(move: PartitionMove, *, is_silent: bool) -> None:
    if not is_silent and not sys.stderr.isatty():
        terminal.say(move.line())


@contextlib.contextmanager
def drawing(show: "Callable[[], RenderableType]", *, is_silent: bool) -> Iterator[Callable[[], None]]:
    """A way to show how things are now, in a terminal; elsewhere nothing."""
    if is_silent or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.live import Live

    with Live(console=terminal.err(), auto_refresh=False, transient=True) as live:
        yield lambda: live.update(show(), refresh=True)


def table(moves: list[PartitionMove]) -> "RenderableType":
    """All of them, with how far each has come."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("partition", "from", "to", "step", "time"):
        grid.add_column(column, justify="right" if column in ("partition", "time") else "left")
    for move in moves:
        last = max(move.seconds.values(), default=0.0)
        grid.add_row(str(move.partition), move.from_broker or "-", move.to_broker or "-", _way(move), f"{last:.2f} s")
    errors = [Text(f"partition {move.partition}: {move.error}", style="red") for move in moves if move.error]
    return Group(grid, *errors)


def _way(move: PartitionMove) -> Any:
    from rich.text import Text

    if move.step not in STEPS:
        return Text(move.step, style="bold red")
    at = STEPS.index(move.step)
    parts: list[Any] = []
    for number, step in enumerate(STEPS):
        style = "green" if number < at or move.step == MOVED else "bold yellow" if number == at else "dim"
        parts += [(step, style), (" → ", "dim")]
    return Text.assemble(*parts[:-1])


def conclude(moves: list[PartitionMove], *, as_json: bool) -> int:
    """The result, and the exit code: 0 if all have arrived."""
    if as_json:
        terminal.print_json([move.summary() for move in moves])
    else:
        columns = ("partition", "from", "to", "step", "seconds", "given up", "error")
        rows = [
            (
                move.partition,
                move.from_broker,
                move.to_broker,
                move.step,
                f"{move.seconds.get(move.step, 0.0):.2f}",
                offsets_text(move.given_up) if move.given_up else "",
                move.error or "",
            )
            for move in moves
        ]
        terminal.print_table(columns, rows, right=("partition", "seconds"), rare=("given up", "error"))
    return 0 if all(move.step == MOVED for move in moves) else 1


def lost_text(info: "UnloadInfo") -> str:
    """Say what is given up with a broker that is away: what is known, and that it may be more."""
    begins = f"partition {info.partition} waits for broker {info.from_broker}, which alone has "
    if info.given_up is None:
        return f"{begins}all that is not in the archive"
    start, end = info.given_up
    known = f"it had reported {offsets_text(info.given_up)}" if end > start else "it had reported none of them"
    since = ""
    if info.reported_seconds is not None:
        since = (
            f" {info.reported_seconds:.0f} seconds ago, and acknowledged more from then until its lease ended, "
            f"{info.lease_seconds:g} seconds after it was last heard of, at the latest"
        )
    return f"{begins}every record from offset {start} on: {known}{since}; how many there are is known when it is back"


def offsets_text(given_up: tuple[int, int]) -> str:
    """`[17, 40), 23 records`."""
    start, end = given_up
    return f"[{start}, {end}), {terminal.counted(end - start, 'record')}"

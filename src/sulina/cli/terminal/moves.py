"""The progress of moves, as commands show it.

The moves are carried out by the brokers: they go on when the command that shows them ends.
"""

import asyncio
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sulina.cli import terminal
from sulina.core.cluster.entries import UnloadStep
from sulina.errors import SulinaError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sulina.client import Client
    from sulina.wire.messages import PartitionPlacement, Placement, UnloadInfo

POLL_SECONDS = 0.03  # a step may be over soon
LATE_SECONDS = 3.0  # a move that is no longer listed, with its partition where it was, then counts as refused

MOVED = "moved"
STEPS = (*map(str, UnloadStep), MOVED)
RECOVERING = "recovering"
REFUSED = "refused"


@dataclass(slots=True, kw_only=True)
class PartitionMove:
    """The move of one partition, with the step that it has reached."""

    topic: str
    partition: int
    from_broker: str | None
    to_broker: str | None
    epoch: int  # before
    step: str = STEPS[0]
    error: str | None = None
    given_up: tuple[int, int] | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # from the request until each step was first seen
    gone_seconds: float | None = None  # since when it is no longer listed

    @property
    def is_over(self) -> bool:
        """Return whether the move has ended, or will not continue by itself."""
        return self.step in (MOVED, RECOVERING, REFUSED)

    def see(self, under_way: "UnloadInfo | None", place: "PartitionPlacement", seconds: float) -> bool:
        """Take in what brokers report, and return whether the step or the error has changed."""
        from sulina.client.move_watch import has_moved

        before = (self.step, self.error)
        if has_moved(place, self.epoch):
            self.step, self.error, self.to_broker = MOVED, None, place.broker_id
        elif under_way is not None:
            self.step, self.error = under_way.step, under_way.error
            self.given_up = self.given_up or under_way.given_up
            self.gone_seconds = None
            if self.step == RECOVERING:
                start, end = under_way.given_up or (None, None)
                what = (
                    "records that are not archived"
                    if start is None
                    else f"the records from offset {start} on (its last report: up to {end})"
                )
                self.error = f"broker {under_way.from_broker} died, and only its disk has {what}"
        elif place.broker_id is None:
            self.step, self.gone_seconds = UnloadStep.UNASSIGNED, None
        else:
            self.gone_seconds = seconds if self.gone_seconds is None else self.gone_seconds
            if seconds - self.gone_seconds > LATE_SECONDS:
                self.step = REFUSED
                self.error = f"broker {place.broker_id} keeps it; if consumers are attached, use --force"
        self.seconds.setdefault(self.step, round(seconds, 3))
        return before != (self.step, self.error)

    def line(self) -> str:
        """Return the step as one line of a log."""
        told = f"{self.seconds[self.step]:6.2f} s  partition {self.partition}: {self.step}"
        if self.step == MOVED:
            told += f" to {self.to_broker}"
        return f"{told}: {self.error}" if self.error else told

    def summary(self) -> dict[str, Any]:
        """Return the move as `--json` prints it."""
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
    """Return the moves that were asked for, with the epochs from before them."""
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
    """Show the moves until each of them is over. `since` is the time of the request by the monotonic clock."""
    try:
        with terminal.live(lambda: table(moves), is_silent=is_silent) as draw:
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
        terminal.say(f"the move continues; `sulina topic lookup {topic}` shows the owners")
        raise
    except SulinaError as error:
        error.add_note(f"the move may continue; `sulina topic lookup {topic}` shows the owners")
        raise


def _tell(move: PartitionMove, *, is_silent: bool) -> None:
    if not is_silent and not sys.stderr.isatty():
        terminal.say(move.line())


def table(moves: list[PartitionMove]) -> "RenderableType":
    """Return a table of the moves with the steps that they have reached."""
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
    """Print the moves, and return the exit code: 0 if all of them have ended at a new owner."""
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
    """Return which records would be lost with a broker that is away: those that it reported, and perhaps more."""
    begins = f"partition {info.partition} waits for broker {info.from_broker}: only its disk has "
    if info.given_up is None:
        return f"{begins}the records that are not archived"
    start, end = info.given_up
    known = offsets_text(info.given_up) if end > start else "no records"
    since = ""
    if info.reported_seconds is not None:
        since = (
            f", {info.reported_seconds:.0f} seconds ago; it may have acknowledged more until its lease ended, "
            f"at most {info.lease_seconds:g} seconds after its last contact"
        )
    return f"{begins}the records from offset {start} on. Its last report: {known}{since}"


def offsets_text(given_up: tuple[int, int]) -> str:
    """Return a range of offsets as `[17, 40), 23 records`."""
    start, end = given_up
    return f"[{start}, {end}), {terminal.counted(end - start, 'record')}"

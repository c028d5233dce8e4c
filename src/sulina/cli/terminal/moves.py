"""The progress of moves, as commands show it.

The moves are carried out by the brokers: they go on when the command that shows them ends.
"""

import sys
import time
from typing import TYPE_CHECKING, Any

from sulina.cli import terminal
from sulina.core.cluster.entries import MoveEnd, UnloadStep

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sulina.wire.messages import UnloadInfo


STEPS = (*map(str, UnloadStep), str(MoveEnd.MOVED))  # of a move that nothing stops


class MoveView:
    """The moves that a command has asked for, with the time from the request until each step was first seen."""

    def __init__(self, *, is_silent: bool) -> None:
        self.moves: list[UnloadInfo] = []
        self._is_silent = is_silent
        self._since = time.monotonic()  # the request
        self._seconds: dict[int, dict[str, float]] = {}  # by partition and step

    def see(self, moves: "list[UnloadInfo]") -> None:
        """Take in how far the moves are; outside a terminal a line is printed for each change."""
        before = {move.partition: (move.step, move.error) for move in self.moves}
        self.moves = moves
        for move in moves:
            if before.get(move.partition) != (move.step, move.error):
                steps = self._seconds.setdefault(move.partition, {})
                seconds = steps.setdefault(move.step, round(time.monotonic() - self._since, 3))
                if not self._is_silent and not sys.stderr.isatty():
                    told = f"{seconds:6.2f} s  partition {move.partition}: {move.step}"
                    told += f" to {move.to_broker}" if move.step == MoveEnd.MOVED else ""
                    terminal.say(f"{told}: {move.error}" if move.error else told)

    def table(self) -> "RenderableType":
        """Return a table of the moves with the steps that they have reached."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for column in ("partition", "from", "to", "step", "time"):
            grid.add_column(column, justify="right" if column in ("partition", "time") else "left")
        for move in self.moves:
            last = max(self._seconds[move.partition].values())
            ends = (move.from_broker or "-", move.to_broker or "-")
            grid.add_row(str(move.partition), *ends, _way(move.step), f"{last:.2f} s")
        errors = [Text(f"partition {move.partition}: {move.error}", style="red") for move in self.moves if move.error]
        return Group(grid, *errors)

    def conclude(self, *, as_json: bool) -> int:
        """Print the moves, and return the exit code: 0 if all of them have ended at a new owner."""
        if as_json:
            shown = ("topic", "partition", "from_broker", "to_broker", "step", "error", "given_up")
            terminal.print_json(
                [
                    {name: getattr(move, name) for name in shown} | {"seconds": self._seconds[move.partition]}
                    for move in self.moves
                ]
            )
        else:
            columns = ("partition", "from", "to", "step", "seconds", "given up", "error")
            rows = [
                (
                    move.partition,
                    move.from_broker,
                    move.to_broker,
                    move.step,
                    f"{self._seconds[move.partition][move.step]:.2f}",
                    offsets_text(move.given_up) if move.given_up else "",
                    move.error or "",
                )
                for move in self.moves
            ]
            terminal.print_table(columns, rows, right=("partition", "seconds"), rare=("given up", "error"))
        return 0 if all(move.step == MoveEnd.MOVED for move in self.moves) else 1


def _way(reached: str) -> Any:
    from rich.text import Text

    if reached not in STEPS:
        return Text(reached, style="bold red")
    at = STEPS.index(reached)
    parts: list[Any] = []
    for number, step in enumerate(STEPS):
        style = "green" if number < at or reached == MoveEnd.MOVED else "bold yellow" if number == at else "dim"
        parts += [(step, style), (" → ", "dim")]
    return Text.assemble(*parts[:-1])


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

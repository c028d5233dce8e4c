"""Output of commands: results on standard output, everything else on standard error.

With `--json` a result is one JSON document, a stream is one document per line, and standard output has nothing else.
An error is one line on standard error, or one JSON document with `--json`.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDE = 4000  # columns outside a terminal: a table in a pipe or a file is never cut
BROKEN_PIPE = 141  # 128 + SIGPIPE, as shells report it


@cache
def console(*, stderr: bool = False) -> "Console":
    """Return the console for results or, on standard error, for everything else: progress, hints, errors."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Quiet(stderr=stderr, highlight=False, width=None if is_terminal else WIDE)


def print_json(value: object) -> None:
    """Print a value as a JSON document on one line."""
    write(msgspec.json.encode(value) + b"\n")
    sys.stdout.flush()


def write(data: bytes) -> None:
    """Write bytes to standard output as they are, without a flush."""
    sys.stdout.buffer.write(data)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), rare: Sequence[str] = ()
) -> None:
    """Print rows under headings. Columns in `right` are right-aligned; those in `rare` are left out when empty."""
    listed = list(rows)
    kept = [at for at, column in enumerate(columns) if column not in rare or any(row[at] for row in listed)]
    print_block(make_table([columns[at] for at in kept], [[row[at] for at in kept] for row in listed], right=right))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> "RenderableType":
    """Return rows under headings as a block that can be printed or shown live."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    return table


def print_facts(facts: dict[str, Any]) -> None:
    """Print names and values, one pair per line, without those that are None."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None:
            grid.add_row(name, Text(str(value)))
    print_block(grid)


def print_block(block: "RenderableType") -> None:
    """Print a block without trailing blanks, so that other programs can cut and compare its lines."""
    with console().capture() as captured:
        console().print(block)
    sys.stdout.buffer.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()).encode())
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a remark on standard error."""
    from rich.text import Text

    console(stderr=True).print(Text(text, style="dim"), soft_wrap=True)


def done(text: str) -> None:
    """Print what has been done, on standard output."""
    from rich.text import Text

    console().print(Text(text), soft_wrap=True)


def complain(
    message: str, *, hint: str | None, code: str, details: dict[str, object] | None = None, as_json: bool
) -> None:
    """Print one error: what happened, and what to do."""
    if as_json:
        error = {"code": code, "message": message, "hint": hint, "details": details or {}}
        sys.stderr.write(msgspec.json.encode({"error": error}, enc_hook=str).decode() + "\n")
        return
    from rich.text import Text

    line = Text.assemble((f"error: {message}", "red"))
    if hint:
        line.append(f"; {hint}", "default")
    console(stderr=True).print(line, soft_wrap=True)


def can_ask() -> bool:
    """Return whether a person can answer a question: both standard input and standard error are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def is_confirmed(question: str) -> bool:
    """Ask, and return whether the answer is yes. Where nobody can answer, the command counts as confirmed."""
    if not can_ask():
        return True
    console(stderr=True).print(f"{question} [y/N] ", end="", markup=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def end_output() -> bool:
    """Flush standard output, and return whether it is still being read."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and would print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


@contextlib.contextmanager
def live(show: "Callable[[], RenderableType]", *, is_silent: bool) -> Iterator[Callable[[], None]]:
    """Yield a function that draws `show()` in place on standard error; outside a terminal it does nothing."""
    if is_silent or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.live import Live

    with Live(console=console(stderr=True), auto_refresh=False, transient=True) as screen:
        yield lambda: screen.update(show(), refresh=True)


def program() -> str:
    """Return the word that starts this program: its name where the shell finds it, else its path."""
    return "sulina" if shutil.which("sulina") else os.path.relpath(sys.argv[0])


def bytes_text(count: int) -> str:
    """Return a number of bytes as `1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 record`, `12,000 records`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def seconds_text(seconds: float) -> str:
    """Return a time as `42 s`, `3 min 5 s`, `2 h 10 min` or `5 d 1 h`."""
    whole = int(seconds)
    for size, unit, lesser_size, lesser in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // lesser_size} {lesser}"
    return f"{whole} s"

"""What the command line shows: results on standard output, everything else on standard error.

With `--json` a result is one JSON document, a stream is one document a line, and standard output holds nothing else.
An error is one line on standard error, a JSON document there with `--json`.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDE = 4000  # columns where nobody looks: a table in a pipe or a file is never cut
BROKEN_PIPE = 141  # as the shell says it of any other program


@cache
def out() -> "Console":
    """For results."""
    return _console(sys.stdout.isatty(), stderr=False)


@cache
def err() -> "Console":
    """For everything that is not the result: progress, hints, errors."""
    return _console(sys.stderr.isatty(), stderr=True)


def _console(is_terminal: bool, *, stderr: bool) -> "Console":
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    return Quiet(stderr=stderr, highlight=False, width=None if is_terminal else WIDE)


def print_json(value: object) -> None:
    """One document, on one line."""
    write(msgspec.json.encode(value) + b"\n")
    sys.stdout.flush()


def write(data: bytes) -> None:
    """Bytes as they are, to standard output. `flush` is the caller's."""
    sys.stdout.buffer.write(data)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), rare: Sequence[str] = ()
) -> None:
    """Rows under headings; the columns named in `right` are numbers, those in `rare` are left out when empty."""
    listed = list(rows)
    kept = [at for at, column in enumerate(columns) if column not in rare or any(row[at] for row in listed)]
    print_block(make_table([columns[at] for at in kept], [[row[at] for at in kept] for row in listed], right=right))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> "RenderableType":
    """The same, to be put somewhere."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    return table


def print_facts(facts: dict[str, Any]) -> None:
    """Names and values, one a line; what is None is not there."""
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
    """Without the blanks that fill its lines: they disturb whoever cuts or compares them."""
    console = out()
    with console.capture() as captured:
        console.print(block)
    write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()).encode())
    sys.stdout.flush()


def say(text: str) -> None:
    """A remark, to whoever looks."""
    from rich.text import Text

    err().print(Text(text, style="dim"), soft_wrap=True)


def done(text: str) -> None:
    """What has been done."""
    from rich.text import Text

    out().print(Text(text), soft_wrap=True)


def complain(
    message: str, *, hint: str | None, code: str, details: dict[str, object] | None = None, as_json: bool
) -> None:
    """One error: what happened, and what to do."""
    if as_json:
        error = {"code": code, "message": message, "hint": hint, "details": details or {}}
        sys.stderr.write(msgspec.json.encode({"error": error}, enc_hook=str).decode() + "\n")
        return
    from rich.text import Text

    line = Text.assemble((f"error: {message}", "red"))
    if hint:
        line.append(f"; {hint}", "default")
    err().print(line, soft_wrap=True)


def can_ask() -> bool:
    """Whether somebody is there who can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def is_confirmed(question: str) -> bool:
    """Ask, where somebody can answer; elsewhere it was meant."""
    if not can_ask():
        return True
    err().print(f"{question} [y/N] ", end="", markup=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def end_output() -> bool:
    """Push out what is buffered. False when nobody reads any more; then nothing will be said about it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def program() -> str:
    """How this program is called: by its name where the shell would find it."""
    return "sulina" if shutil.which("sulina") else os.path.relpath(sys.argv[0])


def bytes_text(count: int) -> str:
    """`1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 record`, `12,000 records`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def seconds_text(seconds: float) -> str:
    """`42 s`, `3 min 5 s`, `2 h 10 min`, `5 d 1 h`."""
    whole = int(seconds)
    for size, unit, lesser_size, lesser in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // lesser_size} {lesser}"
    return f"{whole} s"

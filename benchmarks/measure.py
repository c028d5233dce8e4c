"""What benchmarks share: timing, interleaving, and how results are shown.

A figure is only as good as what it is compared with. So a limit or a peer is measured in the same run as ours,
in turns (`interleaved`), and what counts is the median over the rounds: a noisy machine disturbs both alike.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a benchmark. `goal` says what was to be reached, `met` whether it was."""

    name: str
    value: float
    unit: str
    goal: str | None = None
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """What was asked for on the command line."""

    directory: str  # on the disk under test; removed afterwards
    quick: bool

    def choose(self, quick: int, full: int) -> int:
        """How much of something to do."""
        return quick if self.quick else full


def at_least(name: str, value: float, unit: str, goal: float) -> Result:
    """A result that should be high."""
    return Result(name, value, unit, f">= {goal:g}", value >= goal)


def at_most(name: str, value: float, unit: str, goal: float) -> Result:
    """A result that should be low."""
    return Result(name, value, unit, f"<= {goal:.4g}", value <= goal)


def seconds_of(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def interleaved(rounds: int, *works: Callable[[], float]) -> list[list[float]]:
    """What each of `works` measures, round by round. Every other round goes backwards: nobody is always first."""
    measured: list[list[float]] = [[] for _ in works]
    for number in range(rounds):
        turns = list(zip(measured, works, strict=True))
        for values, work in turns if number % 2 == 0 else reversed(turns):
            values.append(work())
    return measured


def ratio(ours: Sequence[float], limit: Sequence[float]) -> float:
    """Ours to the limit: the median of the rounds, each of which saw the same machine."""
    return median(mine / theirs for mine, theirs in zip(ours, limit, strict=True))


def commit_raw(directory: str, version: int, data: bytes) -> None:
    """What a commit asks of the disk, and nothing else."""
    aside, target = f"{directory}/{version}.aside", f"{directory}/{version:020d}.json"
    file = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.pwrite(file, data, 0)
    os.fdatasync(file)
    os.close(file)
    os.link(aside, target)
    parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(parent)
    os.close(parent)
    os.unlink(aside)


def main(description: str, benchmark: Callable[[Setup], Iterator[Result]]) -> None:
    """The command line of every benchmark."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="less of everything, under a minute")
    parser.add_argument("--json", action="store_true", help="print a JSON list of results and nothing else")
    parser.add_argument("--dir", default=".", help="a directory on the disk to measure (default: here)")
    options = parser.parse_args()
    with scratch(options.dir) as directory:
        results: list[Result] = []
        for result in benchmark(Setup(directory, options.quick)):
            results.append(result)
            if not options.json:
                print(f"{result.name}: {number(result.value)} {result.unit}", file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        show(results)


def show(results: Sequence[Result]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "value", "unit", "goal", "met")
    table.columns[1].justify = "right"
    for result in results:
        table.add_row(result.name, number(result.value), result.unit, result.goal or "", verdict(result))
    Console().print(table)


def verdict(result: Result) -> str:
    """Whether the goal was met, for people."""
    return "" if result.met is None else "yes" if result.met else "**no**"


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@contextmanager
def scratch(parent: str) -> Iterator[str]:
    """A directory that is removed afterwards."""
    directory = tempfile.mkdtemp(prefix="benchmark-", dir=parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)

"""Runs benchmarks of two checkouts in turn, and says what has become quicker or slower by more than they scatter.

    .venv/bin/python benchmarks/compare.py BEFORE AFTER [--rounds 5] [--full] [--json] [SCRIPT …]

Each checkout runs its own scripts with its own `.venv`. The two take turns, so that what else the machine does hits
both. A figure counts as changed if its medians differ and the middle halves of its values do not overlap.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

SCRIPTS = ("log.py", "http.py", "pubsub.py")
SMALLER_IS_BETTER = ("s", "ms", "µs", "us", "seconds", "bytes", "B", "MiB", "cores")  # units, if there is no goal


@dataclass(frozen=True, slots=True)
class Figure:
    """What the values of both checkouts are of."""

    name: str
    unit: str
    is_small_better: bool


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both checkouts."""

    name: str
    unit: str
    before: float  # medians
    after: float
    scatter: float  # of the values of both, as a share of the median: half of the distance between the quartiles
    verdict: str  # same, better or worse


def main() -> int:
    """Run the command; its exit code: 1 if a figure is worse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"default: {', '.join(SCRIPTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="not the quick form of each benchmark")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_intermixed_args()
    found: dict[Figure, tuple[list[float], list[float]]] = {}
    for number in range(given.rounds):
        for script in given.scripts or SCRIPTS:
            trees = [given.before, given.after]
            for tree in trees if number % 2 == 0 else reversed(trees):  # neither is always the first
                for figure, value in figures(tree.resolve(), script, full=given.full):
                    found.setdefault(figure, ([], []))[tree is given.after].append(value)
            print(f"round {number + 1} of {given.rounds}: {script}", file=sys.stderr)
    changes = [change(figure, *both) for figure, both in found.items() if all(both)]
    print(json.dumps([asdict(each) for each in changes], indent=1) if given.json else table(changes))
    return 1 if any(each.verdict == "worse" for each in changes) else 0


def figures(tree: Path, script: str, *, full: bool) -> Iterator[tuple[Figure, float]]:
    """Run one benchmark of a checkout, and yield what it measured."""
    command = [str(tree / ".venv/bin/python"), str(tree / "benchmarks" / script), "--json"]
    done = subprocess.run(
        [*command, *([] if full else ["--quick"])], stdout=subprocess.PIPE, text=True, cwd=tree, check=True
    )
    for each in json.loads(done.stdout):
        name, unit, goal = f"{script.removesuffix('.py')}: {each['name']}", each["unit"], each["goal"]
        is_small_better = goal.startswith("<=") if goal else unit in SMALLER_IS_BETTER
        yield Figure(name, unit, is_small_better), float(each["value"])


def change(figure: Figure, before: Sequence[float], after: Sequence[float]) -> Change:
    """Compare the values of one figure."""
    low_before, high_before = middle_half(before)
    low_after, high_after = middle_half(after)
    old, new = median(before), median(after)
    is_same = low_after <= high_before and low_before <= high_after
    is_better = (new < old) == figure.is_small_better
    return Change(
        name=figure.name,
        unit=figure.unit,
        before=old,
        after=new,
        scatter=max(high_before - low_before, high_after - low_after) / 2 / old if old else 0.0,
        verdict="same" if is_same else "better" if is_better else "worse",
    )


def middle_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def table(changes: Sequence[Change]) -> str:
    """Lay out the comparison as Markdown, what is worse first."""
    lines = ["| figure | before | after | after / before | scatter | |", "|---|---:|---:|---:|---:|---|"]
    for each in sorted(changes, key=lambda one: ("worse", "better", "same").index(one.verdict)):
        ratio = f"{each.after / each.before:.2f}" if each.before else "–"
        lines.append(
            f"| {each.name} | {each.before:,.4g} {each.unit} | {each.after:,.4g} {each.unit} | {ratio} "
            f"| ± {each.scatter:.0%} | {each.verdict} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

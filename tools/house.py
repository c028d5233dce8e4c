"""Counts what a reader of the source meets: names, docstrings, words, ways through the client and through the code.

    .venv/bin/python tools/house.py [--json] [--show] [--no-ways] [--way NAME …] [--page] [TREE]

TREE is a checkout of any commit; without it, the one that this file is in. `--page` writes docs/reference/house.md,
with the figures of docs/reference/house-before.json beside those of TREE.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tools import house_rules as rules
from tools import house_tidy
from tools.house_ways import WAYS, trace

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
BEFORE = REFERENCE / "house-before.json"
PAGE = REFERENCE / "house.md"


def main() -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", nargs="?", type=Path, default=ROOT, metavar="TREE")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--show", action="store_true", help="print what was counted too")
    parser.add_argument("--no-ways", action="store_true", help="trace nothing: no processes are started")
    parser.add_argument("--way", action="append", choices=[*WAYS], help="trace only this way; may be repeated")
    parser.add_argument("--page", action="store_true", help="write docs/reference/house.md")
    given = parser.parse_args()
    tree = given.tree.resolve()
    figures, found = count(tree)
    if not given.no_ways:
        ways = trace(tree, given.way or [])
        figures["ways"] = {way.name: way.figures for way in ways}
        found |= {f"way: {way.name}": way.lines for way in ways}
    if given.page:
        PAGE.write_text(page(json.loads(BEFORE.read_text(encoding="utf-8")), figures), encoding="utf-8")
    elif given.json:
        print(json.dumps(figures | ({"found": found} if given.show else {}), indent=1))
    else:
        print("\n".join(table([figures])))
        if given.show:
            print("\n".join(line for title, lines in found.items() for line in ["", f"# {title}", *lines]))
    return 0


def count(tree: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return the figures of a tree that need no running process, and the places that were counted."""
    source = rules.Source(tree / "src" / "sulina")
    broken = house_tidy.findings(tree, source)
    by_package = source.lines_by_package()
    twice = rules.names_used_twice(source)
    told, untold = rules.functions_that_raise(source)
    verbless, starts = rules.docstrings_without_verb(source), rules.docstrings_with_bad_start(source)
    words = {
        where: rules.words_to_avoid(texts)
        for where, texts in (("src", source.texts), ("docs", house_tidy.documents_of(tree)))
    }
    client = rules.ways_of_client(source)
    figures: dict[str, Any] = {
        "commit": commit(tree),
        "lines": {name: lines for name, (_modules, lines) in by_package.items()},
        "modules": {name: modules for name, (modules, _lines) in by_package.items()},
        "names": {
            "class names with two meanings": len(twice),
            "public functions that raise, with `Raises:`": len(told),
            "public functions that raise, without": len(untold),
            "functions with a docstring": sum(1 for _ in rules.documented(source)),
            "docstrings of functions that do not begin with a verb": len(verbless),
            "docstrings that begin with Of or That": len(starts),
            "references that lead nowhere": len(broken[house_tidy.REFERENCES]),
            "private attributes of others, in tests": len(broken[house_tidy.PRIVATE]),
        },
        "class names with two meanings": twice,
        "words to avoid": {
            where: {word: len(lines) for word, lines in found.items()} for where, found in words.items()
        },
        "ways of the client": {
            f"to {name}, {kind}": sum(method.startswith("Sync") == (kind == "sync") for method in methods)
            for name, methods in client.items()
            for kind in ("async", "sync")
        },
    }
    found = {
        "class names with two meanings": [f"{name}: {', '.join(places)}" for name, places in twice.items()],
        "raise, with Raises:": [str(one) for one in told],
        "raise, without": [str(one) for one in untold],
        "no verb": [str(one) for one in verbless],
        "begins with Of or That": [str(one) for one in starts],
        "references that lead nowhere": [str(one) for one in broken[house_tidy.REFERENCES]],
        "private attributes of others, in tests": [str(one) for one in broken[house_tidy.PRIVATE]],
        **{
            f"{word} in {where}": [str(one) for one in lines] for where in words for word, lines in words[where].items()
        },
        **{f"client: {name}": methods for name, methods in client.items()},
    }
    return figures, found


def commit(tree: Path) -> str:
    """Return the commit that a tree is at, with a plus sign where it has changes."""
    command = ["git", "-C", str(tree), "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


HEAD = """# The house in figures

<!-- Written by `tools/house.py --page`; do not edit. -->

What a reader of the source meets, before the house was put in order (commit {before}) and now (commit {now}). Both
columns are counted by the same script: `.venv/bin/python tools/house.py [--json] [--show] [TREE]` does it for a
checkout of any commit, and with `--show` lists everything that it counted.

A *hop* is a function or method of `src/sulina` that a real run enters. Nodes, clients, the command line, Spark's driver
and its Python workers run as processes of their own, with a real etcd where the way needs a cluster, and a profiler
records what they enter. A function counts once, if every repetition of the way enters it and an idle phase does not.
Constructors, properties, lambdas and compiled code do not count. A *crossing* is a hop that is entered from another
module: what a reader has to look for elsewhere. *Modules* are the files that the hops are in.

What was removed or merged, and why other parts stay: [house-changes.md](house-changes.md).
"""


def page(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Lay out docs/reference/house.md."""
    head = HEAD.format(before=before["commit"], now=now["commit"])
    lines = ["", "## Class names with two meanings", ""]
    for title, figures in (("Before", before), ("Now", now)):
        names = [f"`{name}`" for name in figures["class names with two meanings"]]
        lines += [f"- {title}: {', '.join(names) or 'none'}."]
    return "\n".join([head, *table([before, now]), *lines]) + "\n"


def table(columns: list[dict[str, Any]]) -> list[str]:
    """Lay out the figures as Markdown, one column for each tree."""
    heads = ["before", "now"] if len(columns) > 1 else ["count"]
    rule = "|---" + "|---:" * len(heads) + "|"
    lines = []
    for title, rows in sections(columns):
        lines += [f"## {title}", "", f"| | {' | '.join(heads)} |", rule]
        lines += [f"| {name} | {' | '.join(values)} |" for name, values in rows]
        lines.append("")
    return lines[:-1]


def sections(columns: list[dict[str, Any]]) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    """Yield the parts of the page: a title, and rows with a value for each tree."""
    if any("ways" in one for one in columns):
        yield "Ways through the code: hops / crossings / modules", _rows([_ways(one) for one in columns])
    yield "Ways of the client", _rows([one["ways of the client"] for one in columns])
    yield "Names and docstrings", _rows([one["names"] for one in columns])
    for where in ("src", "docs"):
        yield f"Words to avoid, in {where}", _rows([one["words to avoid"][where] for one in columns])
    for kind in ("modules", "lines"):
        yield f"{kind.capitalize()} of src", _rows([one[kind] | {"all": sum(one[kind].values())} for one in columns])


def _ways(figures: dict[str, Any]) -> dict[str, str]:
    return {
        name: f"{way['hops']} / {way['crossings']} / {way['modules']}" for name, way in figures.get("ways", {}).items()
    }


def _rows(columns: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    names = sorted(dict.fromkeys(name for column in columns for name in column), key="all".__eq__)
    return [(name, [_text(column.get(name)) for column in columns]) for name in names]


def _text(value: int | str | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else value


if __name__ == "__main__":
    sys.exit(main())

"""Make docs/promises.md: every promise, the tests that show it and the planted defects that they find.

.venv/bin/python -m tools.promises           # writes the page; `make fix` calls this
.venv/bin/python -m tools.promises --check   # fails where the page is out of date or a promise is not shown
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutants import ROOT, Mutant
from tools.mutants import load as load_mutants

PROMISES = ROOT / "tests" / "promises.toml"
PAGE = ROOT / "docs" / "promises.md"
MUTANTS_MIN = 1
MUTANTS_OF_GUARDS_MIN = 3  # breaking such a promise loses data

HEAD = """\
<!-- Made by tools/promises.py from tests/promises.toml, the tests and tests/mutants. Do not edit. -->
# What Sulina promises

Each promise has a number. The tests that show it carry the number in their name or docstring. Each of its mutants is a
small defect: `make mutants` plants it in a copy of the source and sees a test fail. Promises marked ● guard against
loss and have at least three.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A numbered behaviour that the system owes."""

    number: str
    chapter: str
    text: str
    guards: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFunction:
    """A test, and the numbers of the promises that it names."""

    __test__ = False  # pytest must not take it for a test class

    file: str
    name: str
    promises: frozenset[str]


def load_promises() -> list[Promise]:
    """Return all promises in their order."""
    return [
        Promise(number=number, chapter=chapter["title"], text=entry["text"], guards=entry.get("guards", False))
        for chapter in tomllib.loads(PROMISES.read_text()).values()
        for number, entry in chapter.items()
        if number != "title"
    ]


def find_tests(folder: Path = ROOT / "tests") -> list[TestFunction]:
    """Return every test function below a folder."""
    return [
        TestFunction(
            file=str(path.relative_to(ROOT)), name=node.name, promises=numbers(node.name, ast.get_docstring(node))
        )
        for path in sorted(folder.rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def numbers(name: str, docstring: str | None) -> frozenset[str]:
    """Return the numbers of promises in a test's name (`test_l13_…`) and docstring (`L13`)."""
    in_name = {word.upper() for word in re.findall(r"(?<=_)[lrufpsd]\d{1,2}(?=_|$)", name)}
    return frozenset(in_name | set(re.findall(r"\b[LRUFPSD]\d{1,2}\b", docstring or "")))


def missing(promises: Sequence[Promise], tests: Sequence[TestFunction], mutants: Sequence[Mutant]) -> list[str]:
    """Return a line for each promise that too few tests or mutants show, and for each number that is no promise."""
    known = {promise.number for promise in promises}
    of_promise = Counter(mutant.promise for mutant in mutants)
    lines = [
        f"mutant {mutant.name}: there is no promise {mutant.promise}"
        for mutant in mutants
        if mutant.promise not in known
    ]
    for promise in promises:
        if not any(promise.number in test.promises for test in tests):
            lines.append(f"{promise.number}: no test names it")
        least = MUTANTS_OF_GUARDS_MIN if promise.guards else MUTANTS_MIN
        if of_promise[promise.number] < least:
            lines.append(f"{promise.number}: has {of_promise[promise.number]} mutants and needs {least}")
    return lines


def page(promises: Sequence[Promise], tests: Sequence[TestFunction], mutants: Sequence[Mutant]) -> str:
    """Return the text of docs/promises.md."""
    text = HEAD
    for chapter in dict.fromkeys(promise.chapter for promise in promises):
        text += f"## {chapter}\n\n| | promise | tests | mutants, and the test that finds each |\n|---|---|---|---|\n"
        for promise in promises:
            if promise.chapter == chapter:
                text += _row(promise, tests, [mutant for mutant in mutants if mutant.promise == promise.number])
        text += "\n"
    return text.rstrip("\n") + "\n"


def _row(promise: Promise, tests: Sequence[TestFunction], mutants: Sequence[Mutant]) -> str:
    files = Counter(test.file for test in tests if promise.number in test.promises)
    shown = "<br>".join(
        f"[{file.removeprefix('tests/')}](../{file}){f' ({count})' if count > 1 else ''}"
        for file, count in files.items()
    )
    planted = "<br>".join(f"{mutant.name}: {_link(mutant.tests[0])}" for mutant in mutants)
    mark = " ●" if promise.guards else ""
    return f'| <a id="{promise.number}"></a>{promise.number}{mark} | {promise.text} | {shown} | {planted} |\n'


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[`{name or Path(file).name}`](../{file})"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or check it; return 1 where something is wrong."""
    promises, tests, mutants = load_promises(), find_tests(), load_mutants()
    text = page(promises, tests, mutants)
    if "--check" not in arguments:
        PAGE.write_text(text)
        return 0
    problems = missing(promises, tests, mutants)
    if not PAGE.exists() or PAGE.read_text() != text:
        problems.append("docs/promises.md is out of date: `make fix` makes it again")
    print("\n".join(problems) or f"{len(promises)} promises, {len(mutants)} mutants")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Plant the defects of tests/mutants one at a time, and see the test that guards against each fail.

    .venv/bin/python tools/mutants.py                   # all of them; `make mutants` calls this
    .venv/bin/python tools/mutants.py --only L4 U8      # those of some promises
    .venv/bin/python tools/mutants.py --name some-name  # one, with the output of its test

A defect is a small change to one function, method or class of src. It is found by its qualified name, so it survives
when files are renamed or lines move. It is applied to a copy; the tree itself is never touched.

Tests of a defect run in a process that is forked from one with everything imported but Sulina itself: importing it all
would take longer than most of the tests.
"""

import argparse
import ast
import atexit
import concurrent.futures
import datetime
import functools
import gc
import importlib
import importlib.util
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import textwrap
import threading
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "tests" / "mutants"
SUPPORT = "tests.support."  # begins the symbols of mutants of what tests use; the others are of src
TEST_SECONDS_MAX = 30  # a test that hangs with a defect has found it
# What many tests need of other packages, and takes long to import.
PRELOADED = [
    "apsw",
    "cyclopts",
    "deltalake",
    "fastavro",
    "grpc.aio",
    "httpx",
    "hypothesis.stateful",
    "jsonschema_rs",
    "msgspec",
    "numba.core",
    "numba.extending",
    "numpy",
    "obstore.store",
    "prometheus_client",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.sql.datasource",
    "pytest",
    "rich.live",
    "rich.progress",
    "starlette.applications",
    "structlog",
    "trustme",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "uvloop",
    "websockets.asyncio.client",
]
EXIT_SECONDS_MAX = 10  # after its tests, whatever a defect has left behind
CLEAN_SECONDS_MAX = 120  # all tests run side by side, without a defect


class Verdict(StrEnum):
    """What became of a planted defect."""

    FOUND = "found"
    SURVIVED = "survived"
    BROKEN = "broken"  # it does not apply, or its test could not be run


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A planted defect, and the tests that must fail with it."""

    promise: str
    name: str
    symbol: str  # "Class.method", or "package.module:Class.method" where that alone is found twice; or of SUPPORT
    replace: str
    by: str
    tests: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Return the folder of what it changes, relative to the project."""
        return SUPPORT.replace(".", "/").rstrip("/") if self.symbol.startswith(SUPPORT) else "src"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The verdict on one mutant."""

    mutant: Mutant
    verdict: Verdict
    seconds: float
    output: str


class DoesNotApply(Exception):
    """A mutant's symbol or text is not in the source, or is there more than once."""


def load(folder: Path = MUTANTS) -> list[Mutant]:
    """Return all mutants, in the order of files and entries.

    Raises:
        DoesNotApply: two mutants have one name.
    """
    mutants = [
        Mutant(
            promise=entry["promise"],
            name=entry["name"],
            symbol=entry["symbol"],
            replace=entry["replace"].strip("\n"),
            by=entry["by"].strip("\n"),
            tests=(entry["test"],) if isinstance(entry["test"], str) else tuple(entry["test"]),
        )
        for path in sorted(folder.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["mutant"]
    ]
    names = [mutant.name for mutant in mutants]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DoesNotApply(f"mutants of the same name: {', '.join(twice)}")
    return mutants


def of_the_day(mutants: Sequence[Mutant], day: datetime.date, share: float = 0.1) -> list[Mutant]:
    """Return the share of the mutants that is planted on a day."""
    count = max(1, round(len(mutants) * share))
    return random.Random(day.isoformat()).sample(list(mutants), min(count, len(mutants)))


def plant(mutant: Mutant, source: Path) -> tuple[Path, str]:
    """Return the file that a mutant changes, relative to `source`, and its text with the defect.

    Raises:
        DoesNotApply: the symbol or the text to replace is not there exactly once, or the result is not Python.
    """
    found = _symbols(source).get(mutant.symbol.removeprefix(SUPPORT), [])
    if len(found) != 1:
        where = ", ".join(str(path) for path, _, _ in found) or "nowhere"
        raise DoesNotApply(f"{mutant.name}: {mutant.symbol} must be in one place; it is in: {where}")
    [(path, first, last)] = found
    lines = (source / path).read_text().splitlines(keepends=True)
    block = "".join(lines[first:last])
    plain = textwrap.dedent(block)
    count = plain.count(mutant.replace)
    if count != 1:
        raise DoesNotApply(f"{mutant.name}: {mutant.symbol} has the text to replace {count} times, not once")
    indent = " " * (len(block) - len(block.lstrip(" ")) - (len(plain) - len(plain.lstrip(" "))))
    changed = textwrap.indent(plain.replace(mutant.replace, mutant.by), indent)
    text = "".join(lines[:first]) + changed + "".join(lines[last:])
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise DoesNotApply(f"{mutant.name}: with the defect {path} is not Python: {error}") from error
    return path, text


@functools.cache
def _symbols(source: Path) -> dict[str, list[tuple[Path, int, int]]]:
    """Return where each symbol is: file, first and last line, by its qualified name with and without its module."""
    places: dict[str, list[tuple[Path, int, int]]] = {}

    def note(name: str, module: str, place: tuple[Path, int, int]) -> None:
        places.setdefault(f"{module}:{name}", []).append(place)
        if name:
            places.setdefault(name, []).append(place)

    def walk(node: ast.AST, prefix: str, module: str, path: Path) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                note(name, module, (path, first - 1, child.end_lineno or child.lineno))
                walk(child, name, module, path)

    for file in sorted(source.rglob("*.py")):
        path, text = file.relative_to(source), file.read_text()
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        note("", module, (path, 0, text.count("\n") + 1))
        walk(ast.parse(text), "", module, path)
    return places


def run(mutant: Mutant, root: Path = ROOT) -> Result:
    """Plant one defect in a copy of the source, and run its tests there."""
    started = time.monotonic()
    try:
        path, text = plant(mutant, root / mutant.folder)
    except DoesNotApply as error:
        return Result(mutant=mutant, verdict=Verdict.BROKEN, seconds=0, output=str(error))
    copy = _copy_of_source(root, mutant.folder, threading.get_ident())
    changed = copy / mutant.folder / path
    changed.write_text(text)
    try:
        if mutant.folder == "src":
            code, output = run_tests(mutant.tests, copy / "src", root)
        else:
            code, output = run_tests(mutant.tests, root / "src", root, support=copy)
    finally:
        shutil.copy2(root / mutant.folder / path, changed)
        Path(importlib.util.cache_from_source(str(changed))).unlink(missing_ok=True)  # it has the defect
    verdict = {0: Verdict.SURVIVED, 1: Verdict.FOUND}.get(code, Verdict.BROKEN)
    return Result(mutant=mutant, verdict=verdict, seconds=time.monotonic() - started, output=output)


@functools.cache
def _copy_of_source(root: Path, name: str, _thread: int) -> Path:
    """Return a folder with a copy of one of the project's, with what is compiled, that one thread may change while this
    process lives.
    """
    folder = Path(tempfile.mkdtemp(prefix="sulina-mutants-"))
    atexit.register(shutil.rmtree, folder)
    shutil.copytree(root / name, folder / name)
    return folder


def run_tests(
    tests: Iterable[str],
    source: Path,
    root: Path = ROOT,
    *,
    processes: int = 0,
    seconds_max: int = TEST_SECONDS_MAX,
    support: Path | None = None,
) -> tuple[int, str]:
    """Run tests against a source folder; return pytest's exit code and what it printed.

    `support` is a folder that has a `tests/support` instead of the project's.
    """
    # Hypothesis is a plugin too, and needs none of what pytest would have done to its assertions. And pytest's own
    # tracebacks fail where a time limit has ended a test between two lines.
    plain = ("-W", "ignore::pytest.PytestAssertRewriteWarning", "--tb=native")
    tests = list(tests)
    arguments = ["-x", "-q", "-n", str(processes), "--timeout", str(seconds_max), *plain, *tests]
    paths = [str(folder) for folder in (support, source, root) if folder is not None]
    receiver, sender = _forks().Pipe(duplex=False)
    with tempfile.NamedTemporaryFile() as output, receiver:
        with sender:
            process = _forks().Process(
                target=_run_pytest, args=(arguments, paths, root, output.name, sender, support is not None)
            )
            process.start()
        try:
            # A task of the test may have swallowed what the time limit raised in it: then it hangs past its limit.
            is_done = receiver.poll(len(tests) * seconds_max + EXIT_SECONDS_MAX)
            code = receiver.recv() if is_done else int(pytest.ExitCode.TESTS_FAILED)
        except EOFError:  # it died: its own exit code tells nothing about the tests
            code = pytest.ExitCode.INTERNAL_ERROR
        process.join(EXIT_SECONDS_MAX)
        process.kill()
        return code, Path(output.name).read_text(errors="replace")


@functools.cache
def _forks() -> ForkServerContext:
    """Return what starts processes that have imported what tests need of others."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


class _Ended:
    """Note how the tests ended."""

    code = int(pytest.ExitCode.INTERNAL_ERROR)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.code = int(exitstatus)


def _run_pytest(
    arguments: list[str], paths: list[str], root: Path, output: str, sender: Connection, is_support: bool
) -> None:
    """Run pytest here as `python -m pytest` in `root` with a PYTHONPATH of `paths` does, and send its exit code."""
    with open(output, "wb") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    gc.freeze()  # what the server has imported stays out of garbage collections, which would copy it
    assert "sulina" not in sys.modules, "it would be tested without the defect"
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path[:0] = paths
    os.chdir(root)
    if is_support:
        importlib.import_module(SUPPORT.strip("."))  # from the first path: pytest would take that of `root`
    ended = _Ended()
    try:
        pytest.main(arguments, plugins=[ended])
    finally:  # after the tests, what they left behind can still raise
        sender.send(ended.code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants that were asked for; return 1 if any was not found."""
    parser = argparse.ArgumentParser(description="Plant defects and see them found.")
    parser.add_argument("--only", nargs="+", metavar="PROMISE", help="Only the mutants of these promises.")
    parser.add_argument("--name", help="Only the mutant of this name; its test's output is shown.")
    parser.add_argument("--processes", type=int, default=2, help="How many to run side by side. Default: 2.")
    chosen = parser.parse_args(arguments)
    mutants = [
        mutant
        for mutant in load()
        if (not chosen.only or mutant.promise in chosen.only) and (not chosen.name or mutant.name == chosen.name)
    ]
    if not mutants:
        parser.error("no mutant matches")
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    print(f"{len(tests)} tests without a defect …", flush=True)
    code, output = run_tests(tests, ROOT / "src", processes=chosen.processes, seconds_max=CLEAN_SECONDS_MAX)
    if code:
        print(output, "A test fails without any defect: no verdict is possible.", sep="\n")
        return 1
    missed: list[Result] = []
    with concurrent.futures.ThreadPoolExecutor(chosen.processes) as pool:
        for result in pool.map(run, mutants):
            mutant = result.mutant
            print(f"{mutant.promise:4} {result.verdict:9} {result.seconds:6.1f} s  {mutant.name}", flush=True)
            if result.verdict is not Verdict.FOUND:
                missed.append(result)
            if chosen.name or result.verdict is Verdict.BROKEN:
                print(textwrap.indent(result.output, "     | "))
    print(f"{len(mutants)} planted, {len(mutants) - len(missed)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

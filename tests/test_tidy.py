"""Small functions, documented parts: held by a test, so that nobody has to argue."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sulina"
FUNCTION_LINES_MAX = 70


def python_files() -> list[Path]:
    folders = [SOURCE, ROOT / "tests", ROOT / "benchmarks"]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", python_files(), ids=name_of)
def test_functions_are_small(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=name_of)
def test_modules_say_what_they_are(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "no docstring"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=name_of)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert not re.search(r"\b(TODO|FIXME|XXX)\b|NotImplementedError", path.read_text())


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


# The behaviours that the system owes by now, by their numbers.
OWED = [
    *(f"L{number}" for number in range(1, 18)),
    *(f"U{number}" for number in range(1, 15)),
    *(f"F{number}" for number in range(1, 8)),
    *("P1", "P2", "P3", "P12"),
    *("S1", "S2", "S3", "S4", "S6", "S7"),
]


def test_every_behaviour_that_is_owed_is_named_by_a_test() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    missing = [line for line in OWED if not re.search(rf"\b{line}\b|_{line.lower()}\b", text)]
    assert not missing, f"no test names {missing}"

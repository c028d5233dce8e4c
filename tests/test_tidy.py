"""Small functions, documented parts: held by a test, so that nobody has to argue."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sulina"
FUNCTION_LINES_MAX = 70


def python_files() -> list[Path]:
    folders = [SOURCE, ROOT / "tests", ROOT / "benchmarks", ROOT / "tools"]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_functions_are_small() -> None:
    long = [
        f"{name_of(path)}: {node.name} has {lines} lines"
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long


def test_modules_say_what_they_are() -> None:
    silent = [name_of(path) for path in SOURCE.rglob("*.py") if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent, "no docstring"


def test_nothing_is_left_for_later() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX)\b|NotImplementedError")
    assert not [name_of(path) for path in SOURCE.rglob("*.py") if mark.search(path.read_text())]


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_workflows_call_words_of_the_makefile_and_nothing_else() -> None:
    words = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    for workflow in workflows:
        text = workflow.read_text()
        commands = re.findall(r"^\s*(?:- )?run: (.*)$", text, re.MULTILINE)
        assert commands, workflow.name
        for command in commands:
            called = re.fullmatch(r"make ([a-z]+|\$\{\{ matrix\.word \}\})( [A-Z]+=\w+)*", command)
            assert called, f"{workflow.name} runs {command}"
            assert called[1] in words or called[1].startswith("${{"), command
        for word in re.findall(r"word: \[(.*)\]", text):
            assert set(word.split(", ")) <= words

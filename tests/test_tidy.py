"""Small functions, documented parts: held by a test, so that nobody has to argue."""

import ast
import re
from pathlib import Path

import pytest

from tools.house_rules import Finding, Source
from tools.house_tidy import (
    CLASS_NAMES,
    PRIVATE,
    RAISES,
    REFERENCES,
    RULES,
    VERBS,
    WORDS,
    findings,
)

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


# Words and names: the rules that tools/house.py counts. `tools/house.py --no-ways --show` lists what breaks them.


@pytest.fixture(scope="module")
def source() -> Source:
    return Source(SOURCE)


@pytest.fixture(scope="module")
def broken(source: Source) -> dict[str, list[Finding]]:
    return findings(ROOT, source)


@pytest.mark.parametrize("rule", RULES)
def test_every_part_keeps_the_rules_of_the_house(rule: str, broken: dict[str, list[Finding]]) -> None:
    assert not broken[rule], f"{rule}:\n" + "\n".join(map(str, broken[rule]))


# The rules themselves: a rule that cannot fail is no rule.

CLEAN_TREE = {
    "tests/promises.toml": '[L]\ntitle = "The log"\nL13 = { text = "A repeat is known." }\n',
    "tests/test_topic.py": "import os\ntopic.kept = topic.log, os._exit\n",
    "docs/adr/0001-one-log.md": "See ADR 0001, `core/log`, `Topic.accept`, promise L13 and topic.py; S3 is a store.\n",
    "src/sulina/core/log/plan.py": '"""A plan for a log."""\n',
    "src/sulina/broker/topic.py": '''
"""A topic, as `core/log` and `log.plan` have it: L13, plan.py."""

class Topic:
    """A named log."""

    def accept(self) -> None:
        """Accept a batch.

        Raises:
            ValueError: it is empty.
        """
        self._log = None
        raise ValueError

    def _close(self) -> None:
        raise KeyError
''',
}
DEFECTS = [
    (CLASS_NAMES, "src/sulina/core/a.py", "class Topic: pass", ["broker/topic.py:4  Topic", "core/a.py:1  Topic"]),
    (VERBS, "src/sulina/core/plan.py", 'def f():\n    """The owner of it."""', ["core/plan.py:1  f: The owner of it."]),
    (VERBS, "src/sulina/core/plan.py", 'class A:\n    """Of one topic."""', ["core/plan.py:1  Of one topic."]),
    (RAISES, "src/sulina/core/plan.py", "def f():\n    raise errors.Gone(1)", ["core/plan.py:1  f raises Gone"]),
    (WORDS, "src/sulina/core/plan.py", 'HELP = "Whoever asks"', ['core/plan.py:1  HELP = "Whoever asks"']),
    (WORDS, "docs/guides/log.md", "One\ntwo is none.", ["docs/guides/log.md:2  two is none."]),
    (WORDS, "README.md", "It lets topics go.", ["README.md:1  It lets topics go."]),
    (REFERENCES, "src/sulina/core/a.py", "# See L14.", ["core/a.py:1  L14 is not a promise of tests/promises.toml"]),
    (REFERENCES, "docs/log.md", "See ADR 0002.", ["docs/log.md:1  ADR 0002 is not in docs/adr"]),
    (REFERENCES, "docs/log.md", "See core/plans.py.", ["docs/log.md:1  core/plans.py is not a file of the project"]),
    (REFERENCES, "docs/log.md", "See `core/plans`.", ["docs/log.md:1  `core/plans` is not a module"]),
    (REFERENCES, "docs/log.md", "See `Topic.admit`.", ["docs/log.md:1  `Topic.admit`: Topic has no admit"]),
    (REFERENCES, "src/sulina/core/a.py", "# See `plan.made`.", ["core/a.py:1  `plan.made`: plan has no made"]),
    (REFERENCES, "src/sulina/core/a.py", "# See `plans.f()`.", ["core/a.py:1  `plans.f`: nothing is called plans"]),
    (REFERENCES, "docs/log.md", "See seed 003.", ["docs/log.md:1  'seed 003' is a document that readers do not have"]),
    (PRIVATE, "tests/a/test_b.py", "assert topic._log", ["tests/a/test_b.py:1  topic._log"]),
    (PRIVATE, "tests/a/test_b.py", 'patch.setattr(topic, "_log", 1)', ["tests/a/test_b.py:1  topic._log"]),
    (PRIVATE, "tests/a/test_b.py", "from sulina.core import _log", ["tests/a/test_b.py:1  sulina.core._log"]),
]  # fmt: skip


def found_in(folder: Path, files: dict[str, str]) -> dict[str, list[str]]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {rule: [str(one) for one in found] for rule, found in findings(folder).items() if found}


def test_a_clean_tree_breaks_no_rule(tmp_path: Path) -> None:
    assert found_in(tmp_path, CLEAN_TREE) == {}


@pytest.mark.parametrize(("rule", "file", "text", "places"), DEFECTS)
def test_a_planted_defect_breaks_its_rule(tmp_path: Path, rule: str, file: str, text: str, places: list[str]) -> None:
    assert found_in(tmp_path, CLEAN_TREE | {file: text + "\n"}) == {rule: places}


def test_every_rule_has_a_defect_that_breaks_it() -> None:
    assert {rule for rule, *_ in DEFECTS} == set(RULES)

"""Planted defects: all of them apply, those of the day are found, and one that nothing finds is told.

`make mutants` plants all of them; here is a tenth, drawn by the day (SULINA_DAY=2026-11-17 draws that day's again).
"""

import datetime
import os
from pathlib import Path

import pytest

from tools.mutants import ROOT, DoesNotApply, Mutant, Verdict, load, of_the_day, plant, run

MUTANTS = load()
DAY = datetime.date.fromisoformat(os.environ["SULINA_DAY"])  # set by tests/conftest.py, so that all workers agree


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_the_source_and_names_tests_that_exist(mutant: Mutant) -> None:
    path, text = plant(mutant, ROOT / mutant.folder)
    assert text != (ROOT / mutant.folder / path).read_text()
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists(), file
        assert not name or f"def {name.partition('[')[0].rpartition('::')[2]}(" in (ROOT / file).read_text(), test


@pytest.mark.parametrize("mutant", of_the_day(MUTANTS, DAY), ids=lambda mutant: mutant.name)
def test_a_mutant_of_the_day_is_found(mutant: Mutant) -> None:
    result = run(mutant)
    assert result.verdict is Verdict.FOUND, result.output


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project of one function and two tests of it: one that can see, one that cannot."""
    (tmp_path / "src" / "small").mkdir(parents=True)
    (tmp_path / "src" / "small" / "__init__.py").write_text(
        "class Sum:\n    @staticmethod\n    def add(a, b):\n        if a:\n            return a + b\n        return b\n"
    )
    (tmp_path / "test_small.py").write_text(
        "from small import Sum\n\n"
        "def test_that_sees(): assert Sum.add(2, 3) == 5\n\n"
        "def test_that_is_blind(): assert Sum.add(0, 3) == 3\n"
    )
    return tmp_path


def mutant_of_sum(**changes: object) -> Mutant:
    given: dict[str, object] = {
        "promise": "L1",
        "name": "adds-wrongly",
        "symbol": "Sum.add",
        "replace": "    if a:\n        return a + b",
        "by": "    if a:\n        return a - b",
        "tests": ("test_small.py",),
    }
    return Mutant(**(given | changes))  # type: ignore[arg-type]


def test_a_defect_that_a_test_sees_is_found(project: Path) -> None:
    assert run(mutant_of_sum(), project).verdict is Verdict.FOUND


def test_a_defect_that_no_test_sees_has_survived(project: Path) -> None:
    assert run(mutant_of_sum(tests=("test_small.py::test_that_is_blind",)), project).verdict is Verdict.SURVIVED


@pytest.mark.parametrize(
    "changes",
    [
        {"symbol": "Sum.subtract"},
        {"replace": "return c"},
        {"replace": "b"},
        {"by": "    if a"},
        {"by": "    raise ImportError", "symbol": "small:", "replace": "class Sum:", "tests": ("test_missing.py",)},
        {"tests": ("test_small.py::test_that_is_not_there",)},
    ],
    ids=["no-symbol", "no-text", "text-twice", "not-python", "no-file", "no-test"],
)
def test_a_mutant_that_cannot_be_judged_is_broken_and_not_found(project: Path, changes: dict[str, object]) -> None:
    assert run(mutant_of_sum(**changes), project).verdict is Verdict.BROKEN


def test_two_mutants_cannot_have_one_name(tmp_path: Path) -> None:
    entry = '[[mutant]]\npromise = "L1"\nname = "one"\nsymbol = "x"\nreplace = "a"\nby = "b"\ntest = "t"\n'
    (tmp_path / "L.toml").write_text(entry * 2)
    with pytest.raises(DoesNotApply, match="one"):
        load(tmp_path)


def test_another_day_draws_others_and_the_same_day_the_same() -> None:
    many = [mutant_of_sum(name=str(number)) for number in range(100)]
    first, second = datetime.date(2026, 11, 17), datetime.date(2026, 11, 18)
    assert len(of_the_day(many, first)) == 10
    assert of_the_day(many, first) == of_the_day(many, first)
    assert of_the_day(many, first) != of_the_day(many, second)

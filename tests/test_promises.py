"""Every promise is shown by a test and by a planted defect, and docs/promises.md says so."""

import re

from tools.mutants import ROOT, Mutant, load
from tools.promises import PAGE, Promise, TestFunction, find_tests, load_promises, missing, numbers, page

# A number that leads to docs/promises.md; in src only where the page is named with it.
REFERENCE = re.compile(r"promises\.md[^\n]*?\b([LRUFPSD]\d{1,2})\b|\b([LRUFPSD]\d{1,2})\b[^\n]*?promises\.md")


def test_every_promise_has_its_tests_and_mutants() -> None:
    assert not missing(load_promises(), find_tests(), load())


def test_the_page_of_promises_is_up_to_date() -> None:
    assert PAGE.read_text() == page(load_promises(), find_tests(), load()), "`make fix` makes it again"


def test_the_numbers_that_tests_name_are_promises() -> None:
    known = {promise.number for promise in load_promises()}
    unknown = {(test.name, number) for test in find_tests() for number in test.promises - known}
    assert not unknown


def test_comments_name_a_number_only_where_they_say_where_it_leads() -> None:
    for path in sorted((ROOT / "src" / "sulina").rglob("*.py")):
        for line in re.findall(r'(?:#|""").*', path.read_text()):
            if re.search(r"\b[LUF]\d{1,2}\b", line):
                assert REFERENCE.search(line), f"{path.name}: {line}"


def promise(number: str, *, guards: bool = False) -> Promise:
    return Promise(number=number, chapter="Chapter", text="Text.", guards=guards)


def shows(number: str) -> TestFunction:
    return TestFunction(file="tests/test_x.py", name="test_x", promises=frozenset({number}))


def plants(number: str) -> Mutant:
    return Mutant(promise=number, name="x", symbol="x", replace="a", by="b", tests=("tests/test_x.py",))


def test_a_promise_without_a_test_or_a_mutant_is_named() -> None:
    assert missing([promise("L1")], [shows("L1")], [plants("L1")]) == []
    assert missing([promise("L1")], [], [plants("L1")]) == ["L1: no test names it"]
    assert missing([promise("L1")], [shows("L1")], []) == ["L1: has 0 mutants and needs 1"]


def test_a_promise_that_guards_against_loss_needs_three_mutants() -> None:
    guarded = [promise("L1", guards=True)]
    assert missing(guarded, [shows("L1")], [plants("L1")] * 2) == ["L1: has 2 mutants and needs 3"]
    assert missing(guarded, [shows("L1")], [plants("L1")] * 3) == []


def test_a_mutant_of_an_unknown_promise_is_named() -> None:
    assert missing([], [], [plants("L99")]) == ["mutant x: there is no promise L99"]


def test_numbers_are_found_in_names_and_docstrings() -> None:
    assert numbers("test_l13_u8_a_retry", None) == {"L13", "U8"}
    assert numbers("test_a_retry_l13", "U14, P2: text about S3.") == {"L13", "U14", "P2", "S3"}
    assert numbers("test_plain2_pulls", "It has 64 KiB.") == frozenset()

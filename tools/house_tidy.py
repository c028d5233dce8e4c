"""The rules that tests/test_tidy.py holds and tools/house.py counts: one code for both."""

from pathlib import Path

from tools import house_rules as rules
from tools.house_references import References
from tools.house_rules import Finding, Source

CLASS_NAMES = "class names with one meaning"
VERBS = "docstrings that begin with a verb"
RAISES = "errors under Raises:"
WORDS = "no words to avoid"
REFERENCES = "references that lead somewhere"
PRIVATE = "no private attributes of others in tests"
RULES = (CLASS_NAMES, VERBS, RAISES, WORDS, REFERENCES, PRIVATE)

PAGE = "docs/reference/house.md"
QUOTING = (PAGE, "docs/promises.md")  # one names the words, the other quotes tests
HISTORY = "CHANGELOG.md"  # names what was


def findings(tree: Path, source: Source | None = None) -> dict[str, list[Finding]]:
    """Find the places of a tree that break a rule."""
    source = source or Source(tree / "src" / "sulina")
    documents = documents_of(tree)
    references = References(tree, source)
    present = {name: text for name, text in documents.items() if name != HISTORY}
    return {
        CLASS_NAMES: [
            Finding(place, name) for name, places in rules.names_used_twice(source).items() for place in places
        ],
        VERBS: [*rules.docstrings_without_verb(source), *rules.docstrings_with_bad_start(source)],
        RAISES: rules.functions_that_raise(source)[1],
        WORDS: [found for lines in rules.words_to_avoid(source.texts | documents).values() for found in lines],
        REFERENCES: [*references.dead(source.texts, is_code=True), *references.dead(present, is_code=False)],
        PRIVATE: rules.private_attributes(tests_of(tree), {Path(name).stem for name in source.modules}),
    }


def documents_of(tree: Path) -> dict[str, str]:
    """Return the texts that people read: README and its like, and docs."""
    paths = [*tree.glob("*.md"), *(tree / "docs").rglob("*.md")]
    texts = {str(path.relative_to(tree)): path.read_text(encoding="utf-8") for path in sorted(paths)}
    return {name: text for name, text in texts.items() if name not in QUOTING}


def tests_of(tree: Path) -> dict[str, str]:
    """Return the source of the tests."""
    paths = sorted((tree / "tests").rglob("*.py"))
    return {str(path.relative_to(tree)): path.read_text(encoding="utf-8") for path in paths}

"""The fenced blocks of a Markdown page, in order, and what a comment directly above one tells the runner of pages.

A reader of the rendered page does not see these comments. Without one, a block of `sh` or `python` is a whole program
that ends with 0; a block of `text` is what the block before it prints.

    <!-- run: file=pipeline.toml -->    write the block to this file (needed for toml and json)
    <!-- run: session -->               type this Python into the Python that is open since the first such block
    <!-- run: background -->            go on while it runs; it is ended with the page
    <!-- run: exit=1 -->                it ends with this code
    <!-- run: until -->                 repeat it until it prints what the text block after it shows
    <!-- run: similar -->               (text) words with digits in them may be others, and so may the spaces
    <!-- run: not, hosts -->            it cannot be run, for one of REASONS
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

LANGUAGES = ("sh", "python", "toml", "json", "text")
NOTES = {
    "file": ("sh", "python", "toml", "json"),
    "session": ("python",),
    "background": ("sh", "python"),
    "exit": ("sh", "python"),
    "until": ("sh", "python"),
    "similar": ("text",),
    "not": LANGUAGES,
}
REASONS = {
    "installs": "it installs programs on the machine",
    "elsewhere": "other tests run it",
    "hosts": "it needs machines that only a production has",
    "disaster": "it shows a loss that tests/faults makes and repairs",
    "output": "it is the output of a block that is not run",
}

_FENCE = re.compile(r"^ *```(?P<language>\S*) *$")
_COMMENT = re.compile(r"^ *<!-- run: (?P<notes>.*?) -->$")


class PageFault(Exception):
    """A page has a block that cannot be run as it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    page: str
    line: int  # of its text's first line
    language: str
    text: str
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_program(self) -> bool:
        """Return whether it is run, and not written to a file or compared."""
        return self.language in ("sh", "python") and "file" not in self.notes

    @property
    def why_not(self) -> str | None:
        """Return the reason why it is not run; None: it is."""
        return self.notes.get("not")


def blocks_of(page: Path, name: str | None = None) -> list[Block]:
    """Return the blocks of a page.

    Raises:
        PageFault: a block has an unknown language or note, no reason for not being run, or no end.
    """
    found = list(_blocks(page.read_text(), name or page.name))
    for block, after in zip(found, [*found[1:], None], strict=True):
        _check(block)
        if "until" in block.notes and (after is None or after.language != "text"):
            raise PageFault(f"{block.place}: `until` needs a text block after it")
    if found and found[0].language == "text" and found[0].why_not is None:
        raise PageFault(f"{found[0].place}: nothing is run before it, so it is the output of nothing")
    return found


def _blocks(text: str, page: str) -> Iterator[Block]:
    lines = text.splitlines()
    above, at = "", 0
    while at < len(lines):
        if opening := _FENCE.match(lines[at]):
            end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == "```"), None)
            if end is None:
                raise PageFault(f"{page}:{at + 1}: the block has no end")
            yield Block(
                page=page,
                line=at + 2,
                language=opening["language"],
                text="\n".join(lines[at + 1 : end]) + "\n",
                notes=_notes(above),
            )
            at = end
        above = lines[at]
        at += 1


def _notes(comment: str) -> dict[str, str]:
    found = _COMMENT.match(comment)
    if found is None:
        return {}
    if found["notes"].startswith("not"):
        return {"not": found["notes"].removeprefix("not").lstrip(", ")}
    words = (word.partition("=") for word in found["notes"].split(", "))
    return {name: value for name, _, value in words}


def _check(block: Block) -> None:
    if block.language not in LANGUAGES:
        raise PageFault(f"{block.place}: language {block.language!r} is not one of {', '.join(LANGUAGES)}")
    for name in block.notes:
        if block.language not in NOTES.get(name, ()):
            raise PageFault(f"{block.place}: `{name}` is no note for a block of {block.language}")
    if block.why_not is not None and block.why_not not in REASONS:
        raise PageFault(f"{block.place}: {block.why_not!r} is no reason for not running it: {', '.join(REASONS)}")
    if block.language in ("toml", "json") and not block.notes:
        raise PageFault(f"{block.place}: a block of {block.language} needs the file that it belongs to")

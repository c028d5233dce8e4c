"""What a page shows as the output of a command, next to what the command printed."""

import re

ANYTHING = "…"  # within a line, or as a line of its own


def missing(shown: str, printed: str, *, is_similar: bool = False) -> str | None:
    """Return the first shown line that was not printed after those before it; None if all were.

    Lines are compared without the width of their spaces. With `is_similar` words with digits in them are all the same.
    """
    rest = [_plain(line, is_similar) for line in printed.splitlines()]
    for line in shown.splitlines():
        wanted = _plain(line, is_similar)
        if wanted in ("", ANYTHING):
            continue
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in wanted.split(ANYTHING)))
        found = next((number for number, one in enumerate(rest) if pattern.fullmatch(one)), None)
        if found is None:
            return line
        del rest[: found + 1]
    return None


def _plain(line: str, is_similar: bool) -> str:
    words = line.split()
    return " ".join("#" if is_similar and any(map(str.isdigit, word)) else word for word in words)

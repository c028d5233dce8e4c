"""A value that its topic's schema does not allow: where in it, and why."""

REASON_CHARACTERS_MAX = 300


class Misfit(Exception):
    """A value does not fit its schema. It stays inside decoding, and becomes the text beside the row, or InvalidRecord.

    It is raised without a path; each part that it passes adds a step, so values that fit cost nothing.
    """

    def __init__(self, reason: str, *way: str) -> None:
        super().__init__(reason)
        self._reason, self._way = reason, list(reversed(way))

    def under(self, step: str) -> "Misfit":
        """Return it with a step before its path."""
        self._way.append(step)
        return self

    def __str__(self) -> str:
        where = "".join(reversed(self._way)).removeprefix(".")
        return short(f"{where}: {self._reason}" if where else self._reason)


def short(reason: str) -> str:
    """Return one line that fits a column."""
    line = " ".join(reason.split())
    return line if len(line) <= REASON_CHARACTERS_MAX else line[: REASON_CHARACTERS_MAX - 1] + "…"

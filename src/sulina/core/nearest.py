"""The known name that is nearest to a misspelt one, for error messages."""

from collections.abc import Iterable
from difflib import get_close_matches

NEARNESS_MIN = 0.6  # 1: the same, 0: nothing in common
LISTED_MAX = 10


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`; None: no name is like it."""
    by_small_letters = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), by_small_letters, n=1, cutoff=NEARNESS_MIN)
    return by_small_letters[near[0]] if near else None


def nearest_topic(wanted: str, topics: Iterable[str]) -> str | None:
    """Return the topic whose name without its namespace is most like that of `wanted`; None: no topic's is."""
    by_name: dict[str, str] = {}
    for topic in topics:
        by_name.setdefault(topic.rpartition("/")[2], topic)
    near = nearest(wanted.rpartition("/")[2], by_name)
    return None if near is None else by_name[near]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: `; did you mean orders?`, or `; known are a, b`."""
    names = [one for one in known if one != name]
    near = nearest(name, names)
    if near is not None:
        return f"; did you mean {near}?"
    if not names:
        return ""
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return f"; known are {', '.join(names[:LISTED_MAX])}{more}"

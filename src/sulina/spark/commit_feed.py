"""Reads the commits of a partition from the newest back, while clean-up removes the oldest."""

from collections.abc import Callable, Iterator

from sulina.core.log.commit import CHECKPOINT_EVERY, Commit
from sulina.errors import VersionNotRetained
from sulina.types import Version

COMMITS_AT_ONCE = 1000

Ask = Callable[[Version, Version], list[Commit]]  # the commits of versions [start, end); VersionNotRetained


def kept_commits(ask: Ask, start: Version, end: Version) -> list[Commit]:
    """Return the newest of the commits of versions [start, end): a run that ends with the last, as long as it is kept.

    Clean-up removes the oldest first, also while we ask. A refusal says how far it has come. The next question begins
    there, and each one after that further ahead, so that clean-up cannot stay in front of us however fast it is.
    """
    lead = 0
    while start < end:
        try:
            return ask(start, end)
        except VersionNotRetained as gone:
            start = Version(max(start, gone.oldest, gone.version + 1) + lead)
            lead = 2 * lead or CHECKPOINT_EVERY
    return []


def pages_back(ask: Ask, after: Version, newest: Version) -> Iterator[list[Commit]]:
    """Yield the commits from version `newest` back to the one after `after`, in pages, as far as they are kept."""
    end = Version(newest + 1)
    while end > after + 1:
        first = Version(max(after + 1, end - COMMITS_AT_ONCE))
        page = kept_commits(ask, first, end)
        if page:
            yield page
        if len(page) < end - first:
            return
        end = first

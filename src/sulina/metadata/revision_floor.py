"""Whether a metadata store still has the history that it once showed.

Every answer carries the store's revision, which only rises. A request that is sent after revision N was seen, and is
answered with less than N, was answered by a store that lost something: it was restored to an older state, or replaced.
From then on no call is answered, so that nobody takes what is missing for something that was deleted, until the
cluster was recovered and its brokers accept the new history.

A store that was emptied counts from 1 again, so an older copy of it may well be at a higher revision. Revisions do not
show that: where a connection was lost, whoever knows the store better is asked (`confirm`).
"""

from collections.abc import Awaitable, Callable

from sulina.errors import MetadataWentBack


class RevisionFloor:
    """One for each client of a store. Use on one event loop."""

    def __init__(self) -> None:
        self.revision = 0  # the newest that was seen
        self.accepted = 0  # how often a new history was accepted: revisions of different ones cannot be compared
        self.went_back: MetadataWentBack | None = None
        self._listeners: list[Callable[[], None]] = []
        self._checks: list[Callable[[], Awaitable[None]]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when it is found that the store went back, and when a new history is accepted."""
        self._listeners.append(listener)

    def confirm_by(self, check: Callable[[], Awaitable[None]]) -> None:
        """Have `check` asked whenever a connection was lost: it declares that the store is another, or returns.

        It reads by `peek`: all other calls wait for its answer.
        """
        self._checks.append(check)

    async def confirm(self) -> None:
        """Ask whether the store that answers now is the one of before.

        Raises:
            MetadataWentBack: it is not.
            MetadataFailed: it does not answer.
        """
        for check in self._checks:
            await check()

    def check(self) -> None:
        """Refuse every call to a store that went back.

        Raises:
            MetadataWentBack: it did, and the cluster was not recovered yet.
        """
        if self.went_back is not None:
            raise self.went_back

    def expect(self, revision: int) -> None:
        """Take a revision as seen: by this broker in an earlier life, or by another one."""
        self.revision = max(self.revision, revision)

    def seen(self, revision: int, *, floor: int) -> None:
        """Take the revision of an answer to a request that was sent when `floor` had been seen.

        Raises:
            MetadataWentBack: the answer shows an older revision.
        """
        if revision < floor:
            raise self.declare(f"it is at revision {revision} and was at {floor} before")
        self.revision = max(self.revision, revision)

    def declare(self, evidence: str) -> MetadataWentBack:
        """Stop all calls: something shows that the store went back. Return the error that says so."""
        if self.went_back is None:
            self.went_back = MetadataWentBack(evidence=evidence)
            self._tell()
        return self.went_back

    def accept(self) -> None:
        """Begin again with the history that the store has now: the cluster was recovered."""
        self.revision, self.went_back = 0, None
        self.accepted += 1
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

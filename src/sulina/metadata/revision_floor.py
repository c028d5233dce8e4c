"""Whether a metadata store still has the history that it once showed.

Every answer carries the store's revision, which only rises. If a request is sent after revision N was seen, and its
answer has less than N, the store has lost something: it was restored to an older state, or replaced. From then on no
call is answered, so that missing entries are not taken for deleted ones, until the cluster was recovered and its
brokers accept the new history.

A store that was emptied counts from 1 again, so an older copy of it may be at a higher revision. Revisions do not show
that: after a connection was lost, a check that knows more about the store is called (`confirm`).
"""

from collections.abc import Awaitable, Callable

from sulina.errors import MetadataWentBack


class RevisionFloor:
    """The newest revision that a client of a store has seen. Use on one event loop."""

    def __init__(self) -> None:
        self.revision = 0  # the newest that was seen
        self.accepted = 0  # how often a new history was accepted: revisions of different histories cannot be compared
        self.went_back: MetadataWentBack | None = None
        self._listeners: list[Callable[[], None]] = []
        self._checks: list[Callable[[], Awaitable[None]]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when it is found that the store went back, and when a new history is accepted."""
        self._listeners.append(listener)

    def confirm_by(self, check: Callable[[], Awaitable[None]]) -> None:
        """Call `check` whenever a connection was lost: it declares that the store is another one, or returns.

        It reads by `peek`: all other calls wait for its answer.
        """
        self._checks.append(check)

    async def confirm(self) -> None:
        """Check that the store that answers now is the same as before.

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
        """Count a revision as seen: by this broker before a restart, or by another one."""
        self.revision = max(self.revision, revision)

    def seen(self, revision: int, *, floor: int) -> None:
        """Note the revision of an answer to a request that was sent when `floor` had been seen.

        Raises:
            MetadataWentBack: the answer shows an older revision.
        """
        if revision < floor:
            raise self.declare(f"it is at revision {revision} and was at {floor} before")
        self.revision = max(self.revision, revision)

    def declare(self, evidence: str) -> MetadataWentBack:
        """Refuse all calls from now on, because of evidence that the store went back. Return the error."""
        if self.went_back is None:
            self.went_back = MetadataWentBack(evidence=evidence)
            self._tell()
        return self.went_back

    def accept(self) -> None:
        """Accept the history that the store has now: the cluster was recovered."""
        self.revision, self.went_back = 0, None
        self.accepted += 1
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

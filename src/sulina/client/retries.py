"""One request with its retries: whom to ask, what to do about a refusal, and what to say when its time is over."""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

from sulina.client.in_flight import InFlight
from sulina.errors import (
    ArchiveFailed,
    Disconnected,
    LeaseExpired,
    MetadataFailed,
    NotServing,
    QueueFull,
    SulinaError,
)
from sulina.wire.frames import FromClient

if TYPE_CHECKING:
    from sulina.client.session import Session

Make = Callable[[int], FromClient]


class RequestOutcome(Enum):
    """What an error says about what was asked for."""

    REFUSED = auto()  # it was not done, and may be asked again
    UNKNOWN = auto()  # it may have been done: it may be asked again if that does no harm
    FINAL = auto()


def request_outcome(error: BaseException) -> RequestOutcome:
    """Return what an error says of a request that was sent."""
    if isinstance(error, Disconnected | LeaseExpired | ArchiveFailed | MetadataFailed):
        return RequestOutcome.UNKNOWN
    return RequestOutcome.REFUSED if isinstance(error, QueueFull | NotServing) else RequestOutcome.FINAL


class RequestTarget(Protocol):
    """Whom a request is for."""

    @property
    def is_closed(self) -> bool:
        """Whether nobody will be asked any more."""
        ...

    @property
    def reason(self) -> SulinaError | None:
        """Why there is nobody to ask at this moment, if that is known."""
        ...

    @property
    def answer_seconds(self) -> float | None:
        """How long to wait for one answer before another may be asked; None: as long as there is time."""
        ...

    async def session(self) -> "Session":
        """Return the session to use now; waits until there is one."""
        ...

    async def refused(self, error: SulinaError) -> None:
        """Wait, or learn, before it is asked again."""
        ...


class RetryState:
    """How far a request has come."""

    __slots__ = ("is_entering", "is_sent", "is_unknown", "refusal", "room")

    def __init__(self, room: InFlight) -> None:
        self.room = room
        self.is_entering = False  # it waits for room
        self.is_sent = False  # in this attempt
        self.is_unknown = False  # an earlier attempt may have been done
        self.refusal: SulinaError | None = None  # the node's, of the last attempt

    def may_repeat(self, error: SulinaError, is_repeatable: bool) -> bool:
        """Return whether to try again after this error."""
        was_sent, self.is_sent = self.is_sent, False
        self.refusal = None if isinstance(error, Disconnected) else error
        found = request_outcome(error)
        if found is RequestOutcome.UNKNOWN:
            self.is_unknown |= was_sent
            return is_repeatable or not was_sent
        return found is RequestOutcome.REFUSED

    def why_late(self, target: RequestTarget, session: "Session | None", seconds: float) -> SulinaError:
        """Return the error to raise when the time of the request is over."""
        if self.is_entering:
            return self.room.full()
        if self.is_sent and session is not None:
            return session.late(seconds)
        return why_waiting(self.refusal or target.reason, self.is_unknown, session)


def why_waiting(refusal: SulinaError | None, is_unknown: bool, session: "Session | None") -> SulinaError:
    """Return the error of a request that was waiting when its time was over; what may be done is not called refused."""
    if refusal is None:
        return session.disconnected() if session is not None else Disconnected(url="anywhere", reason="nobody is there")
    if is_unknown and not isinstance(refusal, Disconnected):
        url = session.url if session is not None else "anywhere"
        return Disconnected(url=url, reason=f"it was lost before the answer came; since then {refusal}")
    return refusal


async def send_with_retry(
    target: RequestTarget, make: Make, *, room: InFlight, is_repeatable: bool, seconds: float, size_bytes: int = 0
) -> Any:
    """Return the answer to the frame that `make` gives for an id; it is called once for each attempt.

    Raises:
        QueueFull: there was no room in flight within `seconds`.
        Disconnected: there was no answer, and the outcome may be unknown.
        SulinaError: the node's own error.
    """
    state = RetryState(room)
    session: Session | None = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    session = await target.session()
                    return await session.send_once(make, state, size_bytes, target.answer_seconds)
                except SulinaError as error:
                    if target.is_closed or not state.may_repeat(error, is_repeatable):
                        raise
                    await target.refused(error)
    except TimeoutError:
        raise state.why_late(target, session, seconds) from None

"""Requests to other brokers and their answers, over the peer connections.

- A request has a number, which its answer repeats. It ends with the answer, with the other broker's error by its code,
  or with the connection.
- Requests to one broker that wait for their answers are bounded in bytes and in number, and so are those of one broker
  that are served: a broker that does not answer holds up only the requests to itself.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog

from sulina.byte_budget import ByteBudget
from sulina.errors import Disconnected, NotServing, SulinaError
from sulina.wire.peer import AnyPeerFrame, PeerAnswer, PeerFailed, PeerPublish, PeerRequest

ASKED_BYTES_MAX = 16 << 20  # of requests to one broker that wait for their answers
ASKED_BYTES_LEAST = 32 << 10  # that a request counts for: 512 of them wait at most
SERVED_MAX = 1024  # requests of one broker at a time

Answers = Callable[[PeerRequest], Awaitable[Any]]

_logger: structlog.stdlib.BoundLogger = structlog.get_logger("sulina.peer")


class Sender(Protocol):
    """Sends frames to brokers that are connected."""

    def has_room(self, broker_id: str) -> bool:
        """Return whether a broker is connected and little enough waits to be sent to it."""
        ...

    def send(self, broker_id: str, frame: AnyPeerFrame) -> bool:
        """Send a frame; return False if there is no connection."""
        ...


async def refuse_requests(_: PeerRequest) -> Any:
    """Answer no request: for a broker that serves no partition yet.

    Raises:
        NotServing: always.
    """
    raise NotServing(reason="this broker answers no requests of other brokers")


class PeerRequests:
    """The requests of this broker to others, and of others to this one."""

    def __init__(self, sender: Sender, answer: Answers, *, first_id: int) -> None:
        self._sender = sender
        self._answer = answer
        self._ids = itertools.count(first_id)
        self._asked: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._budgets: dict[str, ByteBudget] = {}
        self._served: Counter[str] = Counter()  # requests under way, by broker
        self._tasks: set[asyncio.Task[None]] = set()

    # Asking

    async def ask(self, broker_id: str, request: Callable[[int], PeerRequest]) -> Any:
        """Send a request, made with the number that it gets, and return its result.

        Raises:
            NotServing: there is no connection, or too much waits to be sent. Nothing was sent.
            Disconnected: the connection was lost before the answer came, so the outcome is unknown.
            SulinaError: the other broker refused.
        """
        number = next(self._ids)
        frame = request(number)
        budget = self._budgets.setdefault(broker_id, ByteBudget(ASKED_BYTES_MAX))
        async with budget.holding(max(ASKED_BYTES_LEAST, _size_bytes(frame))):
            if not self._sender.has_room(broker_id) or not self._sender.send(broker_id, frame):
                raise NotServing(reason=f"broker {broker_id} is not connected, or does not take what it is sent")
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._asked[number] = broker_id, future
            try:
                return await future
            finally:
                del self._asked[number]

    def answered(self, frame: PeerAnswer | PeerFailed) -> None:
        """End the request that a frame answers, unless its caller has gone."""
        _, future = self._asked.get(frame.id, (None, None))
        if future is None or future.done():
            return
        if isinstance(frame, PeerAnswer):
            future.set_result(frame.result)
        else:
            future.set_exception(frame.error())

    def lost(self, broker_id: str, reason: str) -> None:
        """End the requests to a broker whose connection is lost."""
        for asked_of, future in self._asked.values():
            if asked_of == broker_id and not future.done():
                future.set_exception(Disconnected(url=broker_id, reason=reason))

    # Serving

    def serve(self, broker_id: str, request: PeerRequest) -> None:
        """Answer a request of another broker, beside those that are being served."""
        if self._served[broker_id] >= SERVED_MAX:
            refused = NotServing(reason=f"{SERVED_MAX} requests of broker {broker_id} are under way")
            self._sender.send(broker_id, _failed(request, refused))
            return
        self._served[broker_id] += 1
        task = asyncio.create_task(self._serve(broker_id, request), name=f"serve {broker_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, broker_id: str, request: PeerRequest) -> None:
        answer: PeerAnswer | PeerFailed
        try:
            answer = PeerAnswer(request.id, await self._answer(request))
        except SulinaError as error:
            answer = _failed(request, error)
        except Exception:
            # The other broker must hear that it failed.
            _logger.exception("peer_request_failed", peer=broker_id, request=type(request).__name__)
            answer = PeerFailed(request.id, "internal", "the broker failed to do this; its log says why")
        finally:
            self._served[broker_id] -= 1
        self._sender.send(broker_id, answer)

    async def close(self) -> None:
        """Stop what is being served."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _size_bytes(request: PeerRequest) -> int:
    return len(request.data) if isinstance(request, PeerPublish) else 0


def _failed(request: PeerRequest, error: SulinaError) -> PeerFailed:
    return PeerFailed(request.id, error.code, str(error), error.details())

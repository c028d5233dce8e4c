"""A subscriber by identity: a name that any client at any node may offer to serve, and that one of them serves.

- An identity is a failover subscription of that name: its cursor is stored, and the next one goes on there.
- Messages are handled one after the other, and each is acked when the handler is done with it.
- When the handler raises, its subscriber leaves, so that another may serve, and comes back after a pause that doubles.
  What it has not acked is given back in order.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from sulina.client.brokers import Brokers
from sulina.client.consumer import Consumer
from sulina.client.handling import Handler, HandlerCalls, calling, threads_for
from sulina.client.message import Message
from sulina.client.subscriber import SubscriberTerms
from sulina.core.backoff import Backoff
from sulina.errors import Disconnected, NotStarted, SulinaError
from sulina.waiting import wait_or_timeout

# Messages that a node sends beyond what the handler has: their ack timeout runs while they wait.
CREDIT = 1
CREDIT_OF_BATCHES = 100
PAUSE_SECONDS_MIN = 0.5  # after a failure
PAUSE_SECONDS_MAX = 15.0

_logger = logging.getLogger("sulina.client")


class IdentitySubscriber:
    """Made by `Client.subscribe` with an identity. It offers to serve until it unsubscribes, or cannot any more."""

    def __init__(
        self,
        brokers: Brokers,
        consume: Callable[[int], Consumer],
        identity: str,
        terms: SubscriberTerms,
        handler: Handler,
        *,
        on_removed: Callable[[SulinaError], object] | None = None,
        on_end: "Callable[[IdentitySubscriber], None]",
    ) -> None:
        """Make a subscriber; `consume` makes a consumer of the identity's subscription, with that much credit."""
        self.identity = identity
        self.terms = terms
        self.handler = handler
        self.delivered = 0  # messages that the handler is done with
        self.removed: asyncio.Future[SulinaError | None] = asyncio.get_running_loop().create_future()
        self._brokers = brokers
        self._consume = consume
        self._on_removed = on_removed
        self._on_end = on_end
        self._threads = threads_for(handler, terms.name)
        self._messages = self._consume(self._credit)
        self._is_idle = True  # the handler is not at work
        self._leaving = asyncio.Event()
        self._backoff = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, brokers.rng.random)
        self._keeper: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """No other subscriber of this client has it on this topic."""
        return self.terms.name

    @property
    def topic(self) -> str:
        """What it is subscribed to."""
        return self.terms.topic

    @property
    def is_attached(self) -> bool:
        """Whether a node knows that it offers to serve."""
        return self._messages.is_attached

    async def open(self) -> None:
        """Offer to serve.

        Raises:
            NotStarted: the client was closed meanwhile.
            TopicNotFound: there is no such topic.
        """
        try:
            await self._messages.open()
            if self._leaving.is_set():  # meanwhile
                await self._messages.close()
                raise NotStarted("the client was closed while the subscriber joined")
        except BaseException:
            self._end(None)
            raise
        self._keeper = asyncio.create_task(self._keep(), name=f"sulina-identity {self.name}")

    async def unsubscribe(self) -> None:
        """Offer no more; the cursor stays for others. Return when no call is under way and all acks are durable.

        Within a call of the handler, it does not wait for that one.
        """
        await self.leave(None)

    async def leave(self, seconds: float | None) -> None:
        """Unsubscribe. A call that takes longer than `seconds` is cancelled, or goes on alone in its thread."""
        self._leaving.set()
        if self._keeper is None or calling.get() is self:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self._is_idle:
                    await self._messages.close()
                await asyncio.wait([self._keeper])
                return
        self._keeper.cancel()
        await asyncio.wait([self._keeper])

    async def wait_removed(self, timeout_seconds: float | None = None) -> SulinaError | None:
        """Wait until it gets nothing more. Return why it was removed; None: it was unsubscribed.

        Raises:
            TimeoutError: it was not removed within `timeout_seconds`.
        """
        async with asyncio.timeout(timeout_seconds):
            return await asyncio.shield(self.removed)

    def _end(self, error: SulinaError | None) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        if self.removed.done():
            return
        self.removed.set_result(error)
        self._on_end(self)
        if error is not None and self._on_removed is not None:
            asyncio.get_running_loop().call_soon(self._on_removed, error)

    # Serving

    @property
    def _credit(self) -> int:
        return CREDIT_OF_BATCHES if self.terms.batches else CREDIT

    async def _keep(self) -> None:
        error: SulinaError | None = None
        calling.set(self)
        try:
            while not self._leaving.is_set():
                try:
                    await self._serve()
                except SulinaError as failure:
                    error = failure
                    if self._brokers.is_closed or not failure.retryable:
                        return
                finally:
                    await self._messages.close()  # makes the acks durable, and gives back the rest
                error = None
                await self._pause()
        except Exception as bug:  # our own: who waits for the end must hear of it
            error = Disconnected(url="anywhere", reason=f"the subscriber failed: {bug!r}")
            raise
        finally:
            self._end(error)

    async def _pause(self) -> None:
        """Leave it to others for a while, unless it is over; then offer again."""
        if not await wait_or_timeout(self._leaving, self._backoff.next()):
            self._messages = self._consume(self._credit)

    async def _serve(self) -> None:
        """Handle what comes, until the handler fails or it is over. The subscription's errors."""
        while not self._leaving.is_set():
            self._is_idle = True
            delivered = await self._messages.take(self._credit)
            self._is_idle = False
            if not delivered or not await self._handle(delivered):
                return

    async def _handle(self, messages: Sequence[Message]) -> bool:
        """Call the handler and ack; False: it failed, or it is over."""
        for calls in [messages] if self.terms.batches else [[one] for one in messages]:
            # What another serves by now is not ours to handle.
            own = [one for one in calls if self._messages.is_own(one)]
            if own and not await self._call(own):
                return False
        return True

    async def _call(self, own: list[Message]) -> bool:
        argument: Any = own if self.terms.batches else own[0]
        call = HandlerCalls(self.handler, [argument], self._leaving.is_set)
        try:
            await call.run(self._threads)
        except (Exception, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            _logger.exception("the handler of %s failed with a delivery of %s", self.name, self.topic)
            return False
        if not call.done:
            return False
        self._backoff.reset()
        self.delivered += len(own)
        for one in own:
            self._messages.ack_soon(one)
        return True

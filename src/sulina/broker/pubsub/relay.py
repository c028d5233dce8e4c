"""Keeps the subscribers of this node joined at the owner of one partition, whoever that is.

An owner that is new, that was away, or that has let a subscriber go, is told of it again, with where it was.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from sulina.broker.pubsub.endpoint import Endpoint, LocalSubscriber
from sulina.core.backoff import doubled
from sulina.core.log.position import Position
from sulina.errors import NotServing, SulinaError
from sulina.types import PartitionName
from sulina.waiting import wait_or_timeout

RETRY_SECONDS = 0.1  # doubles
RETRY_SECONDS_MAX = 2.0
AT_ONCE = 100  # joins that are under way

_logger = structlog.get_logger("sulina.relay")

# Ask the owner to send to a subscriber: the owner, the partition, the subscriber, where it was; None: nowhere yet.
AskJoin = Callable[[str, PartitionName, LocalSubscriber, Position | None], Awaitable[Position | None]]


class Relay:
    """One partition's. It works while it has subscribers."""

    def __init__(
        self,
        name: PartitionName,
        topic_id: str,
        *,
        endpoint: Endpoint,
        owner_of: Callable[[PartitionName], str | None],
        ask: AskJoin,
        give_up: Callable[[LocalSubscriber, SulinaError], None],
    ) -> None:
        self.name = name
        self.topic_id = topic_id  # one of the same name that is made anew is another
        self._endpoint = endpoint
        self._owner_of = owner_of
        self._ask = ask
        self._give_up = give_up
        self._wanted: dict[LocalSubscriber, Position | None] = {}  # not joined; where it was, if it knows
        self._joined: dict[LocalSubscriber, Position | None] = {}  # where it began, in the owner's epoch
        self._waiting: dict[LocalSubscriber, asyncio.Future[Position | None]] = {}
        self._owner: str | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nobody is here."""
        return not self._wanted and not self._joined

    def add(self, subscriber: LocalSubscriber, position: Position | None) -> "asyncio.Future[Position | None]":
        """Join it; the future says from where on it is sent to, or why not."""
        answer = self._waiting[subscriber] = asyncio.get_running_loop().create_future()
        self._wanted[subscriber] = position
        self.look()
        return answer

    @property
    def subscribers(self) -> list[LocalSubscriber]:
        """All that it has."""
        return [*self._wanted, *self._joined]

    def remove(self, subscriber: LocalSubscriber, error: SulinaError) -> str | None:
        """It has left, or must; the owner that is to be told, if any."""
        self._wanted.pop(subscriber, None)
        self._joined.pop(subscriber, None)
        self._answer(subscriber, error)
        return self._owner

    def joined(self, subscriber: LocalSubscriber, owner: str, begin: Position | None) -> None:
        """The owner sends to it from there on. One that left, or is to be joined elsewhere by now, is not."""
        if subscriber in self._wanted and self._owner == owner:
            del self._wanted[subscriber]
            self._joined[subscriber] = begin
            self._answer(subscriber, begin)

    def let_go(self, subscriber: LocalSubscriber) -> None:
        """The owner sends to it no more: join it again, wherever."""
        if subscriber in self._joined:
            self._again(subscriber)
            self.look()

    def owner_lost(self, broker_id: str) -> None:
        """There was a break: what the owner knew of us may be old."""
        if broker_id == self._owner:
            self._all_again()

    def look(self) -> None:
        """Something may have changed."""
        if not self._wanted and self._owner_of(self.name) == self._owner:
            return
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"relay {self.name}")

    async def close(self) -> None:
        """For good."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for waiting in self._waiting.values():
            waiting.cancel()

    def _again(self, subscriber: LocalSubscriber) -> None:
        begun = self._joined.pop(subscriber)
        offset = self._endpoint.position(self.name, subscriber)
        # What it has had since it began came from the same owner, so from a log of the same epoch.
        self._wanted[subscriber] = begun if begun is None or offset is None else replace(begun, value=offset)

    def _all_again(self) -> None:
        for subscriber in list(self._joined):
            self._again(subscriber)
        self.look()

    async def _run(self) -> None:
        failures = 0
        while not self.is_empty:
            self._wake.clear()
            owner = self._owner_of(self.name)
            if owner != self._owner:
                self._owner = owner
                self._all_again()
            if owner is not None and self._wanted:
                # As many as there are now; who comes meanwhile is next.
                joins = [self._join(owner, subscriber) for subscriber in list(self._wanted)[:AT_ONCE]]
                if all(await asyncio.gather(*joins)):
                    failures = 0
                    continue
            if self._wanted:
                await wait_or_timeout(self._wake, doubled(RETRY_SECONDS, RETRY_SECONDS_MAX, failures))
                failures += 1
            elif not self._wake.is_set():
                return  # `look` begins anew

    async def _join(self, owner: str, subscriber: LocalSubscriber) -> bool:
        """False: it is to be tried again, later."""
        wanted = self._wanted.get(subscriber)
        try:
            await self._ask(owner, self.name, subscriber, wanted)  # `joined` is told at once, when the answer comes
        except NotServing as error:
            _logger.debug("subscriber_not_joined", partition=str(self.name), owner=owner, error=str(error))
            return False
        except SulinaError as error:
            if subscriber in self._wanted:
                del self._wanted[subscriber]
                if not self._answer(subscriber, error):
                    self._give_up(subscriber, error)
            return True
        return True

    def _answer(self, subscriber: LocalSubscriber, outcome: Position | SulinaError | None) -> bool:
        """Whether somebody waited for it."""
        waiting = self._waiting.pop(subscriber, None)
        if waiting is None or waiting.done():
            return False
        if isinstance(outcome, SulinaError):
            waiting.set_exception(outcome)
        else:
            waiting.set_result(outcome)
        return True

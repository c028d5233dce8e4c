"""Keeps the subscribers of this node joined at the current owner of one partition.

A new owner, one that was disconnected, and one that has stopped sending to a subscriber, is asked again, with the
position that the subscriber has reached.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from sulina.broker.pubsub.node_subscribers import LocalSubscriber, NodeSubscribers
from sulina.core.backoff import doubled
from sulina.core.log.position import Position
from sulina.errors import NotServing, SulinaError
from sulina.types import PartitionName
from sulina.waiting import wait_or_timeout

RETRY_SECONDS = 0.1  # doubles
RETRY_SECONDS_MAX = 2.0
JOINS_AT_ONCE = 100

_logger = structlog.get_logger("sulina.pubsub")

# Asks an owner to send to a subscriber of a partition, from its position on; None: it has not been anywhere yet.
AskJoin = Callable[[str, PartitionName, LocalSubscriber, Position | None], Awaitable[Position | None]]


class PartitionJoins:
    """Joins subscribers at the owner of one partition; its task runs while one of them is not joined."""

    def __init__(
        self,
        name: PartitionName,
        topic_id: str,
        *,
        local_subscribers: NodeSubscribers,
        owner_of: Callable[[PartitionName], str | None],
        ask: AskJoin,
        remove_for_good: Callable[[LocalSubscriber, SulinaError], None],
    ) -> None:
        self.name = name
        self.topic_id = topic_id  # a topic that is deleted and created again is another one
        self._local_subscribers = local_subscribers
        self._owner_of = owner_of
        self._ask = ask
        self._remove_for_good = remove_for_good
        self._wanted: dict[LocalSubscriber, Position | None] = {}  # not joined; the position, if there is one
        self._joined: dict[LocalSubscriber, Position | None] = {}  # the position where it began, in the owner's epoch
        self._waiting: dict[LocalSubscriber, asyncio.Future[Position | None]] = {}
        self._owner: str | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there are no subscribers."""
        return not self._wanted and not self._joined

    def add(self, subscriber: LocalSubscriber, position: Position | None) -> "asyncio.Future[Position | None]":
        """Join a subscriber; the future has the position where it begins, or the error."""
        answer = self._waiting[subscriber] = asyncio.get_running_loop().create_future()
        self._wanted[subscriber] = position
        self.look()
        return answer

    @property
    def subscribers(self) -> list[LocalSubscriber]:
        """All subscribers, joined or not."""
        return [*self._wanted, *self._joined]

    def remove(self, subscriber: LocalSubscriber, error: SulinaError) -> str | None:
        """Remove a subscriber; return the owner that has to be told, if there is one."""
        self._wanted.pop(subscriber, None)
        self._joined.pop(subscriber, None)
        self._answer(subscriber, error)
        return self._owner

    def joined(self, subscriber: LocalSubscriber, owner: str, begin: Position | None) -> None:
        """Note that an owner sends to a subscriber, unless it was removed or the owner has changed meanwhile."""
        if subscriber in self._wanted and self._owner == owner:
            del self._wanted[subscriber]
            self._joined[subscriber] = begin
            self._answer(subscriber, begin)

    def rejoin(self, subscriber: LocalSubscriber) -> None:
        """Join a subscriber again: the owner has stopped sending to it."""
        if subscriber in self._joined:
            self._again(subscriber)
            self.look()

    def owner_lost(self, broker_id: str) -> None:
        """Join all subscribers again if this broker is the owner: the connection with it was lost."""
        if broker_id == self._owner:
            self._all_again()

    def look(self) -> None:
        """Start the task if a subscriber is not joined, or the owner has changed."""
        if not self._wanted and self._owner_of(self.name) == self._owner:
            return
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"relay {self.name}")

    async def close(self) -> None:
        """Stop the task; joins that are waited for are cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for waiting in self._waiting.values():
            waiting.cancel()

    def _again(self, subscriber: LocalSubscriber) -> None:
        begun = self._joined.pop(subscriber)
        offset = self._local_subscribers.position(self.name, subscriber)
        # Everything since it began came from the same owner, so from a log of the same epoch.
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
                # Subscribers that are added meanwhile are in the next round.
                joins = [self._join(owner, subscriber) for subscriber in list(self._wanted)[:JOINS_AT_ONCE]]
                if all(await asyncio.gather(*joins)):
                    failures = 0
                    continue
            if self._wanted:
                await wait_or_timeout(self._wake, doubled(RETRY_SECONDS, RETRY_SECONDS_MAX, failures))
                failures += 1
            elif not self._wake.is_set():
                return  # `look` starts another task

    async def _join(self, owner: str, subscriber: LocalSubscriber) -> bool:
        """Try to join a subscriber; False: try again later."""
        wanted = self._wanted.get(subscriber)
        try:
            await self._ask(owner, self.name, subscriber, wanted)  # `joined` is called as soon as the answer comes
        except NotServing as error:
            _logger.debug("subscriber_not_joined", partition=str(self.name), owner=owner, error=str(error))
            return False
        except SulinaError as error:
            if subscriber in self._wanted:
                del self._wanted[subscriber]
                if not self._answer(subscriber, error):
                    self._remove_for_good(subscriber, error)
            return True
        return True

    def _answer(self, subscriber: LocalSubscriber, outcome: Position | SulinaError | None) -> bool:
        """Give the outcome to the caller of `add`; False: nobody waits for it."""
        waiting = self._waiting.pop(subscriber, None)
        if waiting is None or waiting.done():
            return False
        if isinstance(outcome, SulinaError):
            waiting.set_exception(outcome)
        else:
            waiting.set_result(outcome)
        return True

"""Where a subscription is attached: at every broker that owns partitions of its topic, whichever these are.

- A broker that lets the consumer go, or whose connection is lost, is attached to again, if it still owns something by
  then; the others do not notice. Partitions that nobody owns for the moment are looked for until somebody does.
- An exclusive subscription is taken where its lowest partition is, and only then elsewhere: so of two consumers that
  come together one has all of it. Who has had it may find its former self there for a while.
- The credit is shared out among the brokers.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sulina.client.brokers import Brokers
from sulina.client.checks import checked_text
from sulina.client.consumer_attachment import SessionAttachment
from sulina.client.placements import TopicPlacement, TopicPlacements, unowned
from sulina.client.route import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, REACH_SECONDS
from sulina.core.backoff import ElapsedBackoff
from sulina.core.delivery.members import SubscriptionKind
from sulina.errors import (
    Conflict,
    ConsumerNotFound,
    Corrupt,
    CursorMoved,
    Disconnected,
    InvalidInput,
    InvalidSettings,
    LimitReached,
    LogStopped,
    NotFound,
    NotServing,
    QueueFull,
    SubscriptionBusy,
    SulinaError,
)
from sulina.json_values import convert_to
from sulina.types import TopicName
from sulina.waiting import wait_or_timeout
from sulina.wire.frames import CREDIT_MAX, Deliver, FromClient, Subscribe
from sulina.wire.messages import Subscribed

LOOK_SECONDS_MIN = 0.5  # between lookups of the owners, at first
LOOK_SECONDS_MAX = 30.0  # and when nothing has changed for a while
ATTACH_SECONDS = 3.0  # while somebody has not answered yet, this often
NEWS_SECONDS = 3.0  # to hear where a partition is that was lost
STEADY_SECONDS = 5.0  # after which an attachment counts as steady, and pauses begin small again

# Trying again would not help, or would create again what was deleted.
_FINAL = (Conflict, Corrupt, InvalidInput, LimitReached, LogStopped, NotFound)
# At first nothing else is put up with.
_PASSING = (ConsumerNotFound, CursorMoved, Disconnected, NotServing, QueueFull)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerTerms:
    """What is subscribed to, and how. The same terms hold after every reconnect."""

    topic: str
    subscription: str
    kind: SubscriptionKind
    start: str
    credit: int
    name: str
    consumer_id: str = field(default_factory=partial(secrets.token_hex, 8))

    def __post_init__(self) -> None:
        if not isinstance(self.credit, int) or not 1 <= self.credit <= CREDIT_MAX:
            raise InvalidSettings(f"credit {self.credit} is not in 1 to {CREDIT_MAX}")
        checked_text("subscription", self.subscription)
        checked_text("name", self.name)


def is_final(error: SulinaError) -> bool:
    """Return whether an attachment that ended with this error is not to be made again."""
    return isinstance(error, _FINAL) and not isinstance(error, ConsumerNotFound) and not error.retryable


class BrokerAttachment:
    """One broker: the attachment to it, from the first attempt to its end."""

    __slots__ = ("attached_at", "attachment", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[SulinaError]
        self.attachment: SessionAttachment | None = None
        self.attached_at: float | None = None

    def was_steady(self, now: float) -> bool:
        """Return whether it had worked before it ended."""
        if self.attached_at is None or self.attachment is None:
            return False
        return self.attachment.has_delivered or now - self.attached_at >= STEADY_SECONDS


def _is_attached(hold: BrokerAttachment) -> bool:
    return hold.attached_at is not None and not hold.task.done()


@dataclass(frozen=True, slots=True)
class AttachmentListener:
    """What a subscription is told. Deliveries come from attachments that have not been lost yet."""

    deliver: Callable[[SessionAttachment, Deliver], None]
    lost: Callable[[SessionAttachment], None]
    failed: Callable[[SulinaError], None]


class ConsumerAttachments:
    """`open`, then they are kept until `close`, or until the listener hears that they cannot be."""

    def __init__(
        self, brokers: Brokers, placements: TopicPlacements, terms: ConsumerTerms, listener: AttachmentListener
    ) -> None:
        self.live: dict[SessionAttachment, None] = {}  # that may deliver
        self._brokers = brokers
        self._places = placements
        self._terms = terms
        self._listener = listener
        self._name = TopicName.parse(terms.topic)
        self._place: TopicPlacement | None = None
        self._holds: dict[str | None, BrokerAttachment] = {}
        self._busy_until: dict[str | None, float] = {}
        self._look_seconds = LOOK_SECONDS_MIN
        self._news_until = 0.0  # until then a newer placement is expected
        self._old_epochs: dict[int, int] = {}  # of the partitions of which that is
        self._old_topic_id = ""  # of the topic that had them
        self._has_attached = False
        self._is_first_lost = False
        self._changed = asyncio.Event()
        self._opened: asyncio.Future[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._reason: SulinaError | None = None  # why something is not attached
        self._backoff = brokers.home.backoff()
        self._patience = ElapsedBackoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, brokers.rng.random)

    async def open(self) -> None:
        """Attach to all who own something now. The node's errors, such as SubscriptionBusy.

        When its time is over, one is enough, and the others are still tried.
        """
        seconds = self._brokers.options.timeout_seconds
        self._opened = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(), name="sulina-subscription")
        try:
            async with asyncio.timeout(seconds):
                await self._opened
        except TimeoutError:
            if not self._has_attached:
                await self._stop()
                raise self._why_late(seconds) from None
        except BaseException:
            await self._stop()
            self.abandon()
            raise

    def _why_late(self, seconds: float) -> SulinaError:
        if self._reason is not None:
            return self._reason
        if self._place is not None and not self._place.owners():
            return unowned(self._name, self._place.partitions[0])
        return self._brokers.home.late(seconds)

    async def close(self) -> None:
        """Make acks durable and detach from all."""
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        await self._stop()
        await asyncio.gather(*(attachment.leave() for attachment in list(self.live)))
        self.live.clear()

    def abandon(self) -> None:
        """Be gone from all of them, without waiting for it."""
        for task in self._tasks():
            task.cancel()
        for attachment in list(self.live):
            attachment.abandon()
        self.live.clear()

    def _tasks(self) -> list[asyncio.Task[None] | asyncio.Task[SulinaError]]:
        tasks: list[asyncio.Task[None] | asyncio.Task[SulinaError]] = [hold.task for hold in self._holds.values()]
        if self._keeper is not None:
            tasks.append(self._keeper)
        return tasks

    async def _stop(self) -> None:
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._holds.clear()

    # Keeping them

    async def _keep(self) -> None:
        try:
            await self._look()
            while True:
                self._attach_where_needed()
                is_due = await self._wait()
                if await self._has_lost() or is_due:
                    await self._look()
        except SulinaError as error:
            self._fail(error)
        except Exception as error:  # our own bug: tell all that wait
            self._fail(Disconnected(url="anywhere", reason=f"the subscription failed: {error!r}"))
            raise

    async def _look(self) -> None:
        """Look up where the topic is served; a node that is alone is asked once."""
        if self._place is not None and self._place.is_alone:
            return
        try:
            if self._place is None:
                self._place = await self._places.get(self._name)
                return
            before, self._place = self._place, await self._places.look_up(self._name)
            if self._old_epochs and before.partitions == self._place.partitions:
                self._brokers.doubt_home()
        except (Disconnected, NotServing) as error:
            if self._brokers.is_closed:
                raise
            self._reason = error

    def _attach_where_needed(self) -> None:
        if self._place is None:
            return
        is_first = not self._has_attached or not (self._is_first_lost or any(map(_is_attached, self._holds.values())))
        for url in self._place.owners():
            if url not in self._holds:
                hold = self._holds[url] = BrokerAttachment()
                hold.task = asyncio.create_task(self._hold(url, hold), name="sulina-attachment")
                hold.task.add_done_callback(lambda _: self._changed.set())
            if is_first and self._terms.kind is SubscriptionKind.EXCLUSIVE:
                break
        self._share_credit()

    async def _wait(self) -> bool:
        """Wait until something has changed; return whether it is time to look up the owners again."""
        place = self._place
        owners = {} if place is None else place.owners()
        is_settled = all(url in self._holds and _is_attached(self._holds[url]) for url in owners)
        if is_settled and owners and self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        if place is not None and place.is_alone:
            seconds = None
        elif place is not None and place.is_whole and not self._awaits_news(place):
            seconds = self._look_seconds if is_settled else ATTACH_SECONDS
        else:
            seconds = self._pause() or PAUSE_SECONDS_MIN
        if not await wait_or_timeout(self._changed, seconds):
            if seconds == LOOK_SECONDS_MAX:
                self._patience.reset()
            self._look_seconds = min(2 * self._look_seconds, LOOK_SECONDS_MAX)
            return True
        self._changed.clear()
        return False

    async def _has_lost(self) -> bool:
        """Check the attachments that ended, and pause before they are made again; return whether there were any."""
        ended = [(url, hold) for url, hold in self._holds.items() if hold.task.done()]
        for url, hold in ended:
            del self._holds[url]
            if hold.was_steady(asyncio.get_running_loop().time()):
                self._backoff.reset()
                self._patience.reset()
            self._check(url, hold)
        if ended:
            self._look_seconds = LOOK_SECONDS_MIN
            assert self._place is not None
            await asyncio.sleep(self._backoff.next() if self._place.is_alone else self._pause())
        return bool(ended)

    def _check(self, url: str | None, hold: BrokerAttachment) -> None:
        error = self._reason = hold.task.result()
        if isinstance(error, NotServing):
            self._await_news(error)
        if isinstance(error, SubscriptionBusy) and self._has_attached and hold.attached_at is None:
            # It may be ourselves: the node has not noticed yet that the old connection is gone.
            now = asyncio.get_running_loop().time()
            if now < self._busy_until.setdefault(url, now + self._brokers.options.timeout_seconds):
                return
            raise error
        # Where nobody is attached, the owner of the lowest partition comes first; but it may be gone.
        self._is_first_lost = hold.attached_at is None
        if is_final(error) or self._brokers.is_closed or not (self._has_attached or isinstance(error, _PASSING)):
            raise error

    def _await_news(self, error: NotServing) -> None:
        """Expect a newer placement: a broker has lost a partition, and others may not have heard of it yet."""
        self._news_until = asyncio.get_running_loop().time() + NEWS_SECONDS
        if self._place is not None:
            lost = getattr(error, "partition", None)
            epochs = {at.partition: at.epoch for at in self._place.partitions if lost in (None, at.partition)}
            self._old_epochs, self._old_topic_id = epochs | self._old_epochs, self._place.topic_id

    def _doubt(self) -> None:
        """Doubt an owner that does not take acks: another may own the partition by now."""
        is_new = not self._old_epochs
        self._await_news(NotServing(reason="acks fail"))
        if is_new:
            self._patience.reset()
            self._changed.set()

    def _awaits_news(self, place: TopicPlacement) -> bool:
        # One change is enough: not all that a broker has is moved from it.
        # Epochs are counted for each topic id: those of another topic of this name are news of their own.
        has_come = place.topic_id != self._old_topic_id or any(
            at.epoch > self._old_epochs.get(at.partition, at.epoch) for at in place.partitions
        )
        if has_come or asyncio.get_running_loop().time() >= self._news_until:
            self._old_epochs = {}
        return bool(self._old_epochs)

    def _pause(self) -> float:
        return self._patience.next(asyncio.get_running_loop().time())

    def _fail(self, error: SulinaError) -> None:
        for hold in self._holds.values():
            hold.task.cancel()
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)
        else:
            self.abandon()
            self._listener.failed(error)

    # One of them

    async def _hold(self, url: str | None, hold: BrokerAttachment) -> SulinaError:
        """Attach, and wait for the end. Why it ended, or why it did not even begin."""
        try:
            session = self._brokers.session(url)
            if url is not None:
                await session.reach(REACH_SECONDS)
        except SulinaError as error:
            return error
        on_trouble = None if url is None else self._doubt
        attachment = hold.attachment = SessionAttachment(session, self._share(), self._listener.deliver, on_trouble)
        try:
            await self._attach(url, attachment)
        except SulinaError as error:
            self._lose(attachment)
            return error
        hold.attached_at = asyncio.get_running_loop().time()
        self._has_attached = True
        self._busy_until.pop(url, None)
        self._changed.set()
        self._share_credit()
        why = await attachment.gone
        self._lose(attachment)
        return why

    async def _attach(self, url: str | None, attachment: SessionAttachment) -> None:
        terms, session = self._terms, attachment.session

        def make(number: int) -> FromClient:
            # Only now is it known over which connection it goes; a home may be with another broker by now.
            if url is not None and session.url.rstrip("/") != url.rstrip("/"):
                raise Disconnected(url=url, reason=f"{session.url} is asked by now")
            session.attach(attachment.handle, attachment)
            self.live[attachment] = None
            return Subscribe(
                number, attachment.handle, terms.topic, terms.subscription,
                terms.kind, terms.start, attachment.credit, terms.name, terms.consumer_id,
            )  # fmt: skip

        try:
            answer = await session.request(make, is_repeatable=False, is_patient=url is None)
        except (Disconnected, asyncio.CancelledError):
            attachment.abandon()  # it may be attached nevertheless
            self.live.pop(attachment, None)
            raise
        except SulinaError as error:
            attachment.lose(error)
            raise
        if answer is not None:
            attachment.is_reliable = convert_to(answer, Subscribed, from_attributes=True).is_reliable

    def _lose(self, attachment: SessionAttachment) -> None:
        self.live.pop(attachment, None)
        self._listener.lost(attachment)

    # Credit

    def _share(self) -> int:
        owners = set() if self._place is None else self._place.owners().keys()
        return max(1, self._terms.credit // max(1, len(owners | self._holds.keys())))

    def _share_credit(self) -> None:
        share = self._share()
        for attachment in self.live:
            if attachment.credit != share:
                attachment.change_credit(share)

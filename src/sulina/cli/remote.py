"""A command's way to a node: where it is, and what to do when it is not there or says no."""

import asyncio
import difflib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from sulina.errors import (
    ArchiveFailed,
    BrokerNotFound,
    DelayQueueFull,
    Disconnected,
    InvalidName,
    InvalidSettings,
    LimitReached,
    MetadataFailed,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NoSubscribers,
    NotReliable,
    OffsetOutOfRange,
    PartitionDropped,
    PositionDiverged,
    QueueFull,
    ReaderNotFound,
    Recovering,
    SubscriptionBusy,
    SubscriptionNotFound,
    SulinaError,
    TopicNotFound,
    VersionNotRetained,
)
from sulina.types import TopicName

if TYPE_CHECKING:
    from sulina.client import Client, ClientOptions

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_NAMESPACE = "default"

Answer = TypeVar("Answer")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """The options of every command that speaks with a node."""

    url: Annotated[str, Parameter(env_var="SULINA_URL", help="Where the node is; brokers, with commas.")] = DEFAULT_URL
    json: Annotated[bool, Parameter(help="The result as JSON, and nothing else on standard output.")] = False

    def run(self, work: "Callable[[Client], Awaitable[Answer]]") -> Answer:
        """Connect, do the work, disconnect."""
        return asyncio.run(self._run(work))

    async def _run(self, work: "Callable[[Client], Awaitable[Answer]]") -> Answer:
        async with client_for(self.url) as client:
            try:
                return await work(client)
            except TopicNotFound as error:
                error.add_note(await _nearest(client, error))
                raise
            except BrokerNotFound as error:
                facts = vars(error)
                known = str(facts.get("brokers", "")).split(", ")
                near = difflib.get_close_matches(str(facts.get("broker", "")), known, n=1, cutoff=0.6)
                error.add_note(f"did you mean {near[0]}?" if near else "`sulina broker list` shows them")
                raise


HERE = Remote()  # the default; cyclopts fills in what was given


def client_for(url: str, options: "ClientOptions | None" = None) -> "Client":
    """Over WebSocket, to be opened with `async with`. InvalidSettings when it is no URL, or one of several is none."""
    from sulina.client import Client

    return Client(url=url, options=options)


def topic_name(text: str) -> str:
    """`/namespace/topic`; `topic` alone is in the namespace `default`. InvalidName."""
    return str(TopicName.parse(text) if "/" in text else TopicName(DEFAULT_NAMESPACE, text))


async def check_broker(client: "Client", broker_id: str) -> None:
    """BrokerNotFound, InvalidSettings when it is away, before anything is asked of it.

    A node that is alone says what is wrong with that itself.
    """
    brokers = (await client.admin.cluster()).brokers
    state_of = {info.broker_id: info.state for info in sorted(brokers, key=lambda info: info.broker_id)}
    if broker_id not in state_of and any(info.url for info in brokers):
        raise BrokerNotFound(broker=broker_id, brokers=", ".join(state_of))
    if state_of.get(broker_id) == "unreachable":
        there = ", ".join(name for name, state in state_of.items() if state == "active") or "none"
        raise InvalidSettings(f"broker {broker_id} is unreachable; those that take partitions: {there}")


def hint_for(error: SulinaError) -> str | None:
    """What to do about it."""
    match error:
        case Disconnected():
            return "is a node running? start one with `sulina serve`, or name others with --url URL,URL"
        case NamespaceNotFound():
            return f"create it with `sulina namespace create {vars(error).get('namespace', 'NAMESPACE')}`"
        case SubscriptionNotFound():
            return "`sulina subscription list TOPIC` shows what there is"
        case ReaderNotFound():
            return "`sulina reader list` shows what there is"
        case SubscriptionBusy():
            return "end those consumers first, or say --force where the command has it"
        case MetadataFailed() if str(vars(error).get("path", "")).startswith("etcd"):
            return "is etcd running? `sulina doctor` checks it"
        case ArchiveFailed():
            return "`sulina doctor` checks the object store"
        case Recovering():
            return "`sulina broker list` shows which brokers are there"
        case NamespaceNotEmpty():
            return f"`sulina topic list --namespace {vars(error).get('namespace', 'NAMESPACE')}` shows them"
        case InvalidName():
            return "a topic is /namespace/topic, of letters, digits, '.', '_' and '-'"
        case OffsetOutOfRange() | PositionDiverged() | VersionNotRetained():
            return "`sulina topic show TOPIC` shows the offsets and versions that there are"
        case NotReliable():
            return "use --subscription to receive what comes"
        case NoSubscribers():
            return "the topic keeps nothing: somebody must be subscribed before anything is published"
        case PartitionDropped() | DelayQueueFull():
            return "`sulina broker list` shows which brokers cannot be reached"
        case QueueFull():
            return "the disk is slower than the producers: send less at once"
        case LimitReached():
            return "the node's limits are in its settings: docs/reference/settings.md"
    return None


async def _nearest(client: "Client", error: TopicNotFound) -> str:
    """The topic that was meant, perhaps."""
    wanted = str(vars(error).get("topic", ""))
    by_topic: dict[str, str] = {}
    for info in await client.admin.topics():
        by_topic.setdefault(info.topic.rpartition("/")[2], info.topic)
    near = difflib.get_close_matches(wanted.rpartition("/")[2], by_topic, n=1, cutoff=0.6)
    if near:
        return f"did you mean {by_topic[near[0]]}? `sulina topic list` shows all"
    return f"create it with `sulina topic create {wanted}`"

"""The `--url` and `--json` options: connecting to a node, and hints for the errors that it answers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from sulina.core.nearest import nearest, nearest_topic
from sulina.errors import (
    ArchiveFailed,
    BrokerNotFound,
    DelayQueueFull,
    Disconnected,
    InvalidName,
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

Answer = TypeVar("Answer")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """The options of every command that connects to a node."""

    url: Annotated[
        str,
        Parameter(env_var="SULINA_URL", help="URL of the node, or of several brokers of a cluster, comma-separated."),
    ] = DEFAULT_URL
    json: Annotated[bool, Parameter(help="Print the result as JSON, and nothing else on standard output.")] = False

    def run(self, work: "Callable[[Client], Awaitable[Answer]]") -> Answer:
        """Connect to the node, do the work, disconnect."""
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
                near = nearest(str(facts.get("broker", "")), known)
                error.add_note(f"did you mean {near}?" if near else "`sulina broker list` lists the brokers")
                raise


HERE = Remote()  # the default; cyclopts fills in what was given


def client_for(url: str, options: "ClientOptions | None" = None) -> "Client":
    """Return a client that connects with `async with`.

    Raises:
        InvalidSettings: `url` is not a URL, or not several with commas between them.
    """
    from sulina.client import Client

    return Client(url=url, options=options)


def topic_name(text: str) -> str:
    """Return the full name of a topic; one without a namespace is in `default`.

    Raises:
        InvalidName: the text is not a topic's name.
    """
    return str(TopicName.of(text))


def hint_for(error: SulinaError) -> str | None:
    """Return what to do about an error, or None."""
    match error:
        case Disconnected():
            return "start a node with `sulina serve`, or name one that runs: --url, SULINA_URL, or url in pipeline.toml"
        case NamespaceNotFound():
            return f"`sulina namespace create {vars(error).get('namespace', 'NAMESPACE')}` creates it"
        case SubscriptionNotFound():
            return "`sulina subscription list TOPIC` lists the subscriptions of a topic"
        case ReaderNotFound():
            return "`sulina reader list` lists the registered readers"
        case SubscriptionBusy() if "exclusive" in str(vars(error).get("reason", "")):
            return (
                "stop that consumer, or use another subscription, created with --mode shared to have several consumers"
            )
        case SubscriptionBusy():
            return "stop those consumers first, or use --force if the command has it"
        case MetadataFailed() if str(vars(error).get("path", "")).startswith("etcd"):
            return "check etcd with `sulina doctor`"
        case ArchiveFailed():
            return "check the object store with `sulina doctor`"
        case Recovering():
            return "start that broker again; `sulina broker list` shows which brokers are there"
        case NamespaceNotEmpty():
            namespace = vars(error).get("namespace", "NAMESPACE")
            return f"`sulina topic list --namespace {namespace}` lists them"
        case InvalidName():
            return "a topic's name is /namespace/topic, of letters, digits, '.', '_' and '-'"
        case OffsetOutOfRange() | PositionDiverged() | VersionNotRetained():
            return "`sulina topic show TOPIC` shows the offsets and versions of each partition"
        case NotReliable():
            return "use --subscription to receive records while they are published"
        case NoSubscribers():
            return "a best-effort topic does not store records: subscribe before you publish"
        case PartitionDropped() | DelayQueueFull():
            return "`sulina broker list` shows which brokers are unreachable"
        case QueueFull():
            return "the disk is slower than the producers: publish at a lower rate"
        case LimitReached():
            return "raise the limit in the node's settings: docs/reference/settings.md"
    return None


async def _nearest(client: "Client", error: TopicNotFound) -> str:
    """Return a hint for a topic that is not there: the name most like it, or how to create it."""
    wanted = str(vars(error).get("topic", ""))
    return near_topic(wanted, [info.topic for info in await client.admin.topics()])


def near_topic(wanted: str, topics: Sequence[str]) -> str:
    """Return a hint for a topic that is not there: the name most like it, in any namespace, or how to create it."""
    near = nearest_topic(wanted, topics)
    if near is not None:
        return f"did you mean {near}? `sulina topic list` lists all topics"
    return f"create it with `sulina topic create {wanted}`"

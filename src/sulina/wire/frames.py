"""The frames of a session: what a client and a node say to each other over a WebSocket, or in one process.

- A request has an `id` that its `Answer` or `Failed` repeats. Any number may be under way; answers come in any order,
  but the publishes of a session to one partition are appended in the order in which they were sent.
- Publishes may belong to a run, named by a number that the client chooses. When the node refuses one of them in
  a way that lets the client send it again (QueueFull, NotServing, …), it refuses all later ones of the run: what is on
  its way back is not overtaken by what was sent before the client knew. What it sends again is another run.
- Records travel as record batches, which publishers encode and readers decode.
- A batch may say who wrote it: producer id, epoch, and the sequence of its first record in this partition. Sent again,
  it gets the first answer, however much was published since; so a publish whose outcome is unknown is safe to repeat. A
  client makes up a random producer id, numbers what it sends in the order of sending, and says `may_skip`: numbers of
  what was refused stay unused. One that comes too late, after higher ones were taken without it, is refused with
  `sequence_skipped`: it was not written, and is numbered again. A `txn_id` does the same for one publish, for a time.
- A node sends a consumer no more records than it has credit for, except to complete a batch. `ranges` says which
  offsets of a delivery's batches are the consumer's; it acks, or nacks, those.
- A subscriber of a topic (`Join`) is at home at the node that it is connected to, and gets every record, from
  all owners. It acks whole deliveries, by their attempt. The first may come before the answer to its Join does.
- An ack with an id is answered when the cursor is durable, with how many of the records the consumer still held: those
  whose time was over may be with somebody else. With id 0 it is not answered.

On the wire a frame is a msgpack array whose first element is its tag.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from sulina.core.delivery.members import SubscriptionKind
from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior
from sulina.core.topic import PARTITIONS_OF_A_TOPIC_MAX
from sulina.errors import ProtocolError, SulinaError, from_code
from sulina.wire.messages import Name

FRAME_BYTES_MAX = 72 << 20  # the largest batch, and what is around it
RANGES_MAX = 10_000
CREDIT_MAX = 1_000_000  # records that a consumer can be sent before it adds credit

Ranges = Annotated[list[tuple[int, int]], Meta(max_length=RANGES_MAX)]
Id = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Credit = Annotated[int, Meta(ge=0, le=CREDIT_MAX)]
Positions = Annotated[dict[int, int], Meta(max_length=PARTITIONS_OF_A_TOPIC_MAX)]
Reason = Annotated[str, Meta(max_length=500)]
EventTypes = Annotated[list[Name], Meta(max_length=100)]


class Frame(Struct, frozen=True, array_like=True, tag_field="type"):
    """The root of all frames."""


# From the client


class Publish(Frame, frozen=True, tag="pub"):
    """Append batches to one partition; None: the node chooses, by the key of the records or in turn."""

    id: Id
    topic: Name
    data: memoryview
    partition: int | None = None
    txn_id: str | None = None
    expected_version: int | None = None
    schema_id: str | None = None
    topic_id: str | None = None  # as the client knows it: a later topic of the same name has another
    run: Id = 0  # 0: it may pass others, and be passed
    delivery_policy: DeliveryPolicy | None = None  # None: the topic's
    partition_behavior: PartitionBehavior | None = None
    producer: Name | None = None  # who publishes: listed among the topic's producers while connected
    may_skip: bool = False  # sequences of its batches leave out what was refused


class Fetch(Frame, frozen=True, tag="fetch"):
    """Read batches of one partition, waiting up to `wait_ms` for the first, for a version and for an offset."""

    id: Id
    topic: Name
    partition: int
    offset: int
    max_bytes: int = 1 << 20
    version: int | None = None
    min_version: int | None = None
    wait_ms: int = 0
    min_offset: int | None = None
    epoch: int | None = None  # in which everything before `offset` was read, as `Fetched` said it


class Subscribe(Frame, frozen=True, tag="sub"):
    """Attach a consumer under a handle that the client chooses. A subscription that does not exist is created.

    The answer is `Subscribed`.
    """

    id: Id
    consumer: Id
    topic: Name
    subscription: Name
    kind: SubscriptionKind = SubscriptionKind.EXCLUSIVE
    start: Name = "latest"
    credit: Credit = 1000
    name: Name = ""
    consumer_id: Name = ""  # the same at every broker, and no other's of this name; none: the name has to do


class AddCredit(Frame, frozen=True, tag="credit"):
    """The consumer can take this many records more."""

    consumer: Id
    records: Credit


class AckRecords(Frame, frozen=True, tag="ack"):
    """These records are done."""

    id: Id
    consumer: Id
    partition: int
    ranges: Ranges


class NackRecords(Frame, frozen=True, tag="nack"):
    """These records are to be delivered again, after a delay; None: the topic's own."""

    id: Id
    consumer: Id
    partition: int
    ranges: Ranges
    delay_ms: Annotated[int, Meta(ge=0, le=24 * 3600 * 1000)] | None = None


class Join(Frame, frozen=True, tag="join"):
    """Attach a subscriber, under a handle that the client chooses: it gets all that is published to the topic.

    `positions` says where it was before, and `start` where it begins in all other partitions. The answer is
    `JoinedTopic`.
    """

    id: Id
    consumer: Id
    topic: Name
    name: Name = ""
    positions: Positions = {}  # the next offset, by partition
    start: Name = "latest"
    epochs: Positions = {}  # in which everything before those was delivered


class AckBatch(Frame, frozen=True, tag="ack_batch"):
    """A subscriber has done all of a delivery. Not answered."""

    consumer: Id
    partition: int
    attempt: int


class FailBatch(Frame, frozen=True, tag="fail_batch"):
    """A subscriber could not do a delivery, and forgets what it was sent after it. Not answered."""

    consumer: Id
    partition: int
    attempt: int
    reason: Reason


class Detach(Frame, frozen=True, tag="detach"):
    """The consumer, or subscriber, leaves; what a consumer has not acked goes to others."""

    id: Id
    consumer: Id


class Call(Frame, frozen=True, tag="call"):
    """Ask for an operation of `wire.operations`, by its name and arguments."""

    id: Id
    method: Name
    arguments: dict[str, Any] = {}


class Listen(Frame, frozen=True, tag="listen"):
    """Tell what happens from now on, in `Happened` frames that repeat this id. Answered before the first of them."""

    id: Id
    types: EventTypes = []  # none: all


class Unlisten(Frame, frozen=True, tag="unlisten"):
    """Tell no more to the listener whose `Listen` had that id. Answered, also when that is unknown."""

    id: Id
    listener: Id


# From the node


class Answer(Frame, frozen=True, tag="ok"):
    """What was asked for: plain values, in the shape of one of `messages`, or None."""

    id: Id
    result: Any = None


class Failed(Frame, frozen=True, tag="err"):
    """Nothing was done, unless the error says otherwise."""

    id: Id
    code: str
    message: str
    details: dict[str, Any] = {}

    def error(self) -> SulinaError:
        """Return the error that was raised on the node."""
        return from_code(self.code, self.message, self.details)


class Deliver(Frame, frozen=True, tag="msg"):
    """Records for a consumer or a subscriber: whole batches, of which `ranges` are its own."""

    consumer: Id
    partition: int
    attempt: int  # 1 the first time; of a subscriber: what its ack repeats
    data: memoryview
    ranges: list[tuple[int, int]]
    epoch: int = -1  # of a subscriber: of the log that they come from


class Detached(Frame, frozen=True, tag="gone"):
    """The node has detached the consumer: after a seek or a change of the topic, it may subscribe again.

    A subscriber whose error is retryable may join again, where it was.
    """

    consumer: Id
    code: str
    message: str
    details: dict[str, Any] = {}

    def error(self) -> SulinaError:
        """Return the error that was raised on the node."""
        return from_code(self.code, self.message, self.details)


class Happened(Frame, frozen=True, tag="event"):
    """An event. `events_missed` with a count says that there were more than could be sent."""

    listener: Id  # the id of its `Listen`
    at: float  # seconds since 1970
    type: str = msgspec.field(name="event")  # a frame's own type is its tag
    topic: str | None = None
    fields: dict[str, Any] = {}


FromClient = (
    Publish | Fetch | Subscribe | AddCredit | AckRecords | NackRecords
    | Join | AckBatch | FailBatch | Detach | Call | Listen | Unlisten
)  # fmt: skip
FromNode = Answer | Failed | Deliver | Detached | Happened

Encoded = bytes | bytearray | memoryview


def decoder_of(kind: Any) -> Callable[[Encoded], Any]:
    """Return a function that reads one frame of these types; it raises ProtocolError for anything else."""
    decoder = msgspec.msgpack.Decoder(kind)

    def decode_frame(data: Encoded) -> Any:
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"not a frame: {error}") from None

    return decode_frame


# A frame is one binary message.
encode_frame: Callable[[FromClient | FromNode], bytes] = msgspec.msgpack.Encoder().encode
decode_from_client: Callable[[Encoded], FromClient] = decoder_of(FromClient)
decode_from_node: Callable[[Encoded], FromNode] = decoder_of(FromNode)

"""What brokers say to each other: length-prefixed msgpack arrays over one connection for each pair.

A frame is four bytes of length, big-endian, and that many bytes. The broker whose name sorts first dials. Both say
`Hello` first; what does not fit ends the connection. After that either side sends what it likes, and frames arrive in
order or the connection ends.
"""

import struct
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from sulina.core.delivery.pubsub import DeliveryReport
from sulina.core.formats import PEER
from sulina.errors import ProtocolError, SulinaError, from_code
from sulina.wire.frames import Encoded, decoder_of
from sulina.wire.messages import Name

PROTOCOL = PEER.number  # 1: without requests
FRAME_BYTES_MAX = 72 << 20
LENGTH = struct.Struct(">I")

Id = Annotated[int, Meta(ge=0, le=2**63 - 1)]
# The epoch of an owner, and the life of its feed. Another life counts attempts from the start; an older epoch is void.
Fence = tuple[int, int]


class PeerFrame(Struct, frozen=True, array_like=True, tag_field="type"):
    """The root of all frames."""


class Hello(PeerFrame, frozen=True, tag="hello"):
    """Who speaks. `started_ms` tells one life of a broker from the next."""

    broker_id: Name
    started_ms: int
    to: Name  # who is meant: another one that has taken its address says no
    protocol: int = PROTOCOL


class Ping(PeerFrame, frozen=True, tag="ping"):
    """Ask for a sign of life."""

    number: int


class Pong(PeerFrame, frozen=True, tag="pong"):
    """Answer a ping."""

    number: int


# From a subscriber's home to a partition's owner


class JoinPartition(PeerFrame, frozen=True, tag="join"):
    """A subscriber wants what is published from `start` on, or from `offset` on. Answered by Joined or Refused.

    Repeated after a break: a handle that is known already is the same subscriber.
    """

    id: Id
    topic: Name
    partition: int
    handle: Id
    name: Name
    offset: int | None = None  # where it was before
    start: Name = "latest"  # a position, where it has not been yet
    topic_id: Name = ""  # as its home knows it: a later topic of the same name has another
    epoch: int = -1  # of the log in which it had everything before `offset`


class Leave(PeerFrame, frozen=True, tag="leave"):
    """A subscriber leaves. Not answered."""

    topic: Name
    partition: int
    handle: Id


class Present(PeerFrame, frozen=True, tag="present"):
    """The handles of all who are at home here, first of all over a new connection: others have left meanwhile."""

    handles: bytes


class Reported(PeerFrame, frozen=True, tag="report"):
    """Report what became of one attempt."""

    topic: Name
    partition: int
    fence: Fence
    report: DeliveryReport


# From the owner to the home


class Joined(PeerFrame, frozen=True, tag="joined"):
    """The subscriber is sent everything from `offset` on; None: the topic is best effort."""

    id: Id
    offset: int | None
    epoch: int = -1  # of the log that it is sent


class Refused(PeerFrame, frozen=True, tag="refused"):
    """The join was refused: NotOwner, TopicNotFound, LimitReached, …"""

    id: Id
    code: str
    message: str
    details: dict[str, Any] = {}

    def error(self) -> SulinaError:
        """Return the error that was raised at the other broker."""
        return from_code(self.code, self.message, self.details)


class DeliverBatch(PeerFrame, frozen=True, tag="deliver"):
    """Stored batches of offsets [start, end) for the subscribers with these handles, as 8 bytes each, big-endian."""

    topic: Name
    partition: int
    fence: Fence
    attempt: Id
    start: int
    end: int
    handles: bytes
    data: memoryview
    epoch: int = -1  # of the log that they come from; -1: the topic is best effort


class Resume(PeerFrame, frozen=True, tag="resume"):
    """These subscribers, which had failed, are sent to again from here on."""

    topic: Name
    partition: int
    fence: Fence
    handles: bytes


class Removed(PeerFrame, frozen=True, tag="removed"):
    """The topic has removed subscribers: suspended for too long, or the topic is deleted or served elsewhere."""

    topic: Name
    partition: int
    handles: bytes
    code: str
    message: str
    details: dict[str, Any] = {}

    def error(self) -> SulinaError:
        """Return the error that was raised at the other broker."""
        return from_code(self.code, self.message, self.details)


# Requests to the owner of a partition, and their answers


class PeerCall(PeerFrame, frozen=True, tag="call"):
    """Ask for an operation of `wire.operations`, by its name and arguments."""

    id: Id
    operation: Name
    arguments: dict[str, Any] = {}


class PeerPublish(PeerFrame, frozen=True, tag="publish"):
    """Append batches to one partition, once for their txn_id. Answered when they are as durable as the topic wants."""

    id: Id
    topic: Name
    partition: int
    data: memoryview
    txn_id: str
    schema_id: str


class PeerAnswer(PeerFrame, frozen=True, tag="answer"):
    """The result of a request: plain values."""

    id: Id
    result: Any = None


class PeerFailed(PeerFrame, frozen=True, tag="failed"):
    """Why a request failed. Nothing was done, unless the error says otherwise."""

    id: Id
    code: str
    message: str
    details: dict[str, Any] = {}

    def error(self) -> SulinaError:
        """Return the error that was raised at the other broker."""
        return from_code(self.code, self.message, self.details)


PeerRequest = PeerCall | PeerPublish
AnyPeerFrame = (
    Hello | Ping | Pong | Present | JoinPartition | Leave | Reported | Joined | Refused | DeliverBatch | Resume
    | Removed | PeerCall | PeerPublish | PeerAnswer | PeerFailed
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
decode_peer: Callable[[Encoded], AnyPeerFrame] = decoder_of(AnyPeerFrame)  # of bytes without their length


def encode_peer(frame: AnyPeerFrame) -> bytearray:
    """Return a frame with its length before it."""
    buffer = bytearray(LENGTH.size)
    _encoder.encode_into(frame, buffer, LENGTH.size)
    LENGTH.pack_into(buffer, 0, len(buffer) - LENGTH.size)
    return buffer


def pack_handles(handles: list[int] | tuple[int, ...]) -> bytes:
    """Return handles as a frame carries them."""
    return struct.pack(f">{len(handles)}Q", *handles)


def unpack_handles(data: bytes) -> tuple[int, ...]:
    """Return the handles that a frame carries.

    Raises:
        ProtocolError: the bytes are not handles.
    """
    if len(data) % 8:
        raise ProtocolError(f"{len(data)} bytes are not handles of 8 bytes each")
    return struct.unpack(f">{len(data) // 8}Q", data)

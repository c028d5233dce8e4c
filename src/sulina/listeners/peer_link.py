"""One connection to another broker: frames in and out, heartbeats, bounds.

A link is a stranger until its hello was taken, then it is up, then it is over, once. What is sent in one turn of the
event loop leaves in one write. The transport is given little more than it takes: the rest waits here, and is counted.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol, cast

import structlog

from sulina.byte_budget import FillLevel
from sulina.errors import ProtocolError
from sulina.listeners.peer_buffer import FrameBuffer
from sulina.listeners.peer_reader import FrameReader
from sulina.wire.peer import FRAME_BYTES_MAX, LENGTH, AnyPeerFrame, Hello, Ping, Pong, decode_peer, encode_peer

HELLO_BYTES_MAX = 8 << 10  # of the first frame: a stranger gets no more room
WRITE_BYTES = 1 << 20  # that the transport is given at once, unless one frame is larger

_logger: structlog.stdlib.BoundLogger = structlog.get_logger("sulina.peer")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """Times and bounds of the connections to other brokers."""

    heartbeat_seconds: float = 1.0
    silence_seconds: float = 3.0  # without a single byte: then a connection is down
    hello_seconds: float = 5.0  # to connect, and again to say hello
    redial_seconds_min: float = 0.05  # the pause doubles, and chance shortens it by up to a half
    redial_seconds_max: float = 2.0
    close_seconds: float = 1.0  # for what waits to leave, at the end
    outbox_bytes_max: int = 16 << 20  # that wait for one broker; past twice as much it is given up
    strangers_max: int = 64  # connections that came and have not said hello


@dataclass(slots=True)
class PeerStats:
    """What went to and came from one broker while it was a member. Hellos and heartbeats are not counted."""

    frames_sent: int = 0
    bytes_sent: int = 0  # with the lengths of frames
    frames_received: int = 0
    bytes_received: int = 0
    ups: int = 0  # how often a connection was made
    waiting_bytes: int = 0  # to be sent, now
    round_trip_seconds: float | None = None  # of the newest heartbeat that was answered


class LinkOwner(Protocol):
    """Whom a link tells what happens to it."""

    limits: PeerLimits

    def link_made(self, link: "PeerLink") -> None:
        """Note that a link is connected; it has not said hello."""
        ...

    def link_hello(self, link: "PeerLink", hello: Hello) -> None:
        """Take its first frame: call its `open`, or end it. ProtocolError ends it too."""
        ...

    def link_frame(self, link: "PeerLink", frame: AnyPeerFrame) -> None:
        """Take any other frame that is not a heartbeat."""
        ...

    def link_room(self, link: "PeerLink") -> None:
        """Note that a link that was full takes more again."""
        ...

    def link_lost(self, link: "PeerLink") -> None:
        """Note the end of a link; its reason is set by then."""
        ...


class PeerLink(asyncio.BufferedProtocol):
    """Belongs to one event loop."""

    def __init__(self, owner: LinkOwner, *, dialled: str | None) -> None:
        """Prepare a link. `dialled` is the broker that this one calls; None: the other side calls."""
        self.dialled = dialled
        self.broker_id = dialled or ""  # who it is, once it has said so
        self.stats = PeerStats()
        self.is_up = False
        self.is_over = False
        self.reason = ""  # why it is over
        self.lost = asyncio.Event()
        self._owner = owner
        self._outbox_bytes_max = owner.limits.outbox_bytes_max
        self._level = FillLevel(self._outbox_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._waiting = FrameBuffer()
        self._is_flushing = False  # it has been arranged
        self._is_paused = False  # the transport has enough
        self._stranger_seconds = 0.0  # that it has been one, and
        self._silent_seconds = 0.0  # since the last byte: no clock is read for what comes
        self._ping_number = 0
        self._ping_at = 0.0
        self._until_ping = owner.limits.heartbeat_seconds

    # Out

    @property
    def is_full(self) -> bool:
        """Return whether so much waits to be sent that nothing should be added."""
        return self._level.is_full

    @property
    def waiting_bytes(self) -> int:
        """Return how many bytes wait to be sent, here and in the transport."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._waiting.size_bytes + waiting

    @property
    def address(self) -> str:
        """Return the address of the other side, for logs."""
        address = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""

    def open(self, broker_id: str, stats: PeerStats) -> None:
        """Take frames of every length from here on: the hello was right."""
        self.broker_id, self.stats, self.is_up = broker_id, stats, True
        self._reader.frame_bytes_max = FRAME_BYTES_MAX

    def send(self, frame: AnyPeerFrame) -> bool:
        """Send a frame after those before it; return False if the link is over."""
        if self.is_over:
            return False
        data = encode_peer(frame)
        size_bytes = len(data)
        assert size_bytes <= FRAME_BYTES_MAX + LENGTH.size, f"a frame of {size_bytes} bytes, which nobody would take"
        waiting = self.waiting_bytes
        if waiting > 2 * self._outbox_bytes_max:
            self.end("it does not take what it is sent")
            return False
        self._level.grown(waiting + size_bytes)
        self._put(data)
        self.stats.frames_sent += 1
        self.stats.bytes_sent += size_bytes
        return True

    def send_control(self, frame: Hello | Ping | Pong) -> None:
        """Send a frame that is not counted. It is left out where much waits, which is a sign of life too."""
        if not self.is_over and self.waiting_bytes <= self._outbox_bytes_max:
            self._put(encode_peer(frame))

    def _put(self, data: bytearray) -> None:
        self._waiting.put(data)
        if not self._is_flushing and not self._is_paused:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._is_flushing = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self.is_over or self._transport is None:
            return
        while self._waiting.size_bytes and not self._is_paused:
            self._transport.writelines(self._waiting.take(WRITE_BYTES))
        if self._level.shrunk(self.waiting_bytes) and self.is_up:
            self._owner.link_room(self)

    def pause_writing(self) -> None:
        """Stop writing: the transport has enough."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Write again soon: the transport takes more, but not during this call."""
        self._is_paused = False
        if not self._is_flushing:
            self._flush_soon()

    # In

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set small buffers in the transport, so that frames wait here and `resume_writing` is called in time."""
        self._transport = cast(asyncio.Transport, transport)
        high = min(WRITE_BYTES, self._outbox_bytes_max // 4)
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        if self.is_over:  # it was given up while it was being made
            self.abort()
        else:
            self._owner.link_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where to read into; after the end of the link, a buffer that is thrown away."""
        return memoryview(bytearray(1 << 10)) if self.is_over else self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that have come whole. An error ends this connection, and nothing else."""
        self._silent_seconds = 0.0
        if self.is_over:
            return
        try:
            for data in self._reader.received(nbytes):
                if not self._take(data):
                    return
        except ProtocolError as error:
            self.end(str(error))
        except Exception as error:
            _logger.exception("peer_frame_failed", peer=self.broker_id, address=self.address)
            self.end(f"a frame of it could not be handled: {error!r}")

    def _take(self, data: bytes | memoryview) -> bool:
        """Handle a frame; return whether the next one is wanted too."""
        frame = decode_peer(data)
        kind = type(frame)
        if not self.is_up:
            if not isinstance(frame, Hello):
                raise ProtocolError(f"{kind.__name__} before Hello")
            self._owner.link_hello(self, frame)
        elif kind is Ping:
            self.send_control(Pong(cast(Ping, frame).number))
        elif kind is Pong:
            if cast(Pong, frame).number == self._ping_number:
                self.stats.round_trip_seconds = self._loop.time() - self._ping_at
        elif kind is Hello:
            raise ProtocolError("Hello twice")
        else:
            self.stats.frames_received += 1
            self.stats.bytes_received += len(data) + LENGTH.size
            self._owner.link_frame(self, frame)
        return not self.is_over

    # Time, and the end

    def sweep(self, seconds: float) -> None:
        """Count the seconds since the last sweep: end a link that is silent, send a heartbeat when one is due."""
        limits = self._owner.limits
        self._silent_seconds += seconds
        if not self.is_up:
            self._stranger_seconds += seconds
            if self._stranger_seconds > limits.hello_seconds:
                self.end(f"no hello in {limits.hello_seconds:g} s")
        elif self._silent_seconds > limits.silence_seconds:
            self.end(f"nothing was heard for {limits.silence_seconds:g} s")
        else:
            self._until_ping -= seconds
            if self._until_ping <= 0 and not self.waiting_bytes:  # what waits is a sign of life too
                self._until_ping = limits.heartbeat_seconds
                self._ping_number += 1
                self._ping_at = self._loop.time()
                self.send_control(Ping(self._ping_number))

    def end(self, reason: str) -> None:
        """End the link at once; frames that wait are lost. The first reason counts."""
        if not self.is_over:
            self.is_over, self.reason = True, reason
            self.abort()

    def finish(self, reason: str) -> None:
        """Take no more frames, send those that wait, and close; `abort` when that takes too long."""
        if not self.is_over:
            self.is_over, self.reason = True, reason
            if self._transport is not None:
                if self._waiting.size_bytes:
                    self._transport.writelines(self._waiting.take(self._waiting.size_bytes))
                self._transport.close()

    def abort(self) -> None:
        """Cut the connection, however far its end has come."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone, closed by either side."""
        if not self.is_over:
            self.is_over, self.reason = True, f"the connection broke: {exc}" if exc else "it has closed the connection"
        self.lost.set()
        self._owner.link_lost(self)

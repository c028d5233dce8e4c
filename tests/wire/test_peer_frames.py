"""What brokers say to each other: every frame comes out as it went in, and what is none is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.delivery.pubsub import DeliveryReport, DeliveryStatus, SubscriberFailure
from sulina.errors import NotOwner, ProtocolError, PubSubError
from sulina.wire.peer import (
    LENGTH,
    AnyPeerFrame,
    DeliverBatch,
    Hello,
    Joined,
    JoinPartition,
    Leave,
    PeerAnswer,
    PeerCall,
    PeerFailed,
    PeerPublish,
    Ping,
    Pong,
    Present,
    Refused,
    Removed,
    Reported,
    Resume,
    decode_peer,
    encode_peer,
    pack_handles,
    unpack_handles,
)

ids = st.integers(0, 2**63 - 1)
numbers = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=40)
handles = st.lists(ids, max_size=20).map(pack_handles)
fences = st.tuples(numbers, numbers)
details: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    names, st.none() | numbers | names | st.floats(allow_nan=False), max_size=5
)
failures = st.builds(SubscriberFailure, ids, st.sampled_from(DeliveryStatus), names)
reports = st.builds(DeliveryReport, ids, st.lists(failures, max_size=5).map(tuple))
frames: st.SearchStrategy[AnyPeerFrame] = st.one_of(
    st.builds(Hello, names, numbers, names, numbers),
    st.builds(Ping, numbers),
    st.builds(Pong, numbers),
    st.builds(Present, handles),
    st.builds(JoinPartition, ids, names, numbers, ids, names, st.none() | numbers),
    st.builds(Leave, names, numbers, ids),
    st.builds(Reported, names, numbers, fences, reports),
    st.builds(Joined, ids, st.none() | numbers),
    st.builds(Refused, ids, names, names, details),
    st.builds(
        DeliverBatch, names, numbers, fences, ids, numbers, numbers, handles, st.binary(max_size=300).map(memoryview)
    ),
    st.builds(Resume, names, numbers, fences, handles),
    st.builds(Removed, names, numbers, handles, names, names, details),
    st.builds(PeerCall, ids, names, details),
    st.builds(PeerPublish, ids, names, numbers, st.binary(max_size=300).map(memoryview), names, names),
    st.builds(PeerAnswer, ids, st.none() | numbers | names | details),
    st.builds(PeerFailed, ids, names, names, details),
)


def test_every_kind_of_frame_is_drawn_here() -> None:
    assert len(AnyPeerFrame.__args__) == 16


@given(frames)
def test_every_frame_comes_out_as_it_went_in(frame: AnyPeerFrame) -> None:
    data = encode_peer(frame)
    assert LENGTH.unpack_from(data) == (len(data) - LENGTH.size,)
    assert decode_peer(bytes(data[LENGTH.size :])) == frame
    assert decode_peer(memoryview(data)[LENGTH.size :].toreadonly()) == frame


@given(st.binary(max_size=300))
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    refused_or_read(data)


@given(frames, st.data())
def test_a_frame_with_wrong_bytes_is_refused_or_is_another(frame: AnyPeerFrame, draw: st.DataObject) -> None:
    data = bytearray(encode_peer(frame)[LENGTH.size :])
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    refused_or_read(bytes(data))


@given(frames, st.data())
def test_a_part_of_a_frame_is_refused(frame: AnyPeerFrame, draw: st.DataObject) -> None:
    data = bytes(encode_peer(frame)[LENGTH.size :])
    with pytest.raises(ProtocolError):
        decode_peer(data[: draw.draw(st.integers(0, len(data) - 1))])


def refused_or_read(data: bytes) -> None:
    try:
        frame = decode_peer(data)
    except ProtocolError:
        return
    assert isinstance(frame, AnyPeerFrame)


def test_a_payload_is_a_view_that_keeps_its_bytes() -> None:
    data = bytes(encode_peer(DeliverBatch("/d/t", 0, (1, 0), 2, 3, 4, b"", memoryview(b"payload")))[LENGTH.size :])
    frame = decode_peer(data)
    del data
    assert isinstance(frame, DeliverBatch)
    assert bytes(frame.data) == b"payload"
    assert frame.data.readonly


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_handles_come_out_as_they_went_in(handles: list[int]) -> None:
    assert unpack_handles(pack_handles(handles)) == tuple(handles)


@given(st.binary().filter(lambda data: len(data) % 8))
def test_what_are_no_handles_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_handles(data)


def test_an_error_is_raised_again_as_it_was_there() -> None:
    facts = {"topic": "/d/t", "partition": 0, "owner": "b2"}
    for frame in (Refused(1, NotOwner.code, "elsewhere", facts), Removed("/d/t", 0, b"", NotOwner.code, "away", facts)):
        error = frame.error()
        assert isinstance(error, NotOwner)
        assert (str(error), error.details()) == (frame.message, facts)
    assert type(Refused(1, "of_tomorrow", "new", {}).error()) is PubSubError

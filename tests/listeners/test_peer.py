"""The connections between brokers, on loopback: made, broken, made again, within their bounds (P6, P9)."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import trustme

from sulina.addresses import split_address
from sulina.listeners.peer import PeerLimits, PeerStats
from sulina.listeners.peer_link import HELLO_BYTES_MAX
from sulina.wire.peer import FRAME_BYTES_MAX, LENGTH, AnyPeerFrame, DeliverBatch, Hello, Ping, Pong, encode_peer
from tests.listeners.peer_world import HOST, QUICK, Logged, Node, Stranger, a_node, a_stranger, batch, connect
from tests.support.fault_proxy import FaultProxy


@pytest.fixture
async def a() -> AsyncIterator[Node]:
    async with a_node("a", started_ms=11) as node:
        yield node


@pytest.fixture
async def b() -> AsyncIterator[Node]:
    async with a_node("b", started_ms=22) as node:
        yield node


# Talking


async def test_two_brokers_talk_both_ways(a: Node, b: Node) -> None:
    await connect(a, b)
    assert a.told == [("up", "b", 22)]
    assert b.told == [("up", "a", 11)]
    assert a.network.has_room("b")
    assert a.network.send("b", batch(1))
    assert b.network.send("a", batch(2))
    await b.until(lambda: b.frames == {"a": [batch(1)]})
    await a.until(lambda: a.frames == {"b": [batch(2)]})


async def test_each_pair_of_three_has_its_connection_and_each_one_itself(a: Node, b: Node) -> None:
    async with a_node("c") as c:
        await connect(a, b, c)
        for node in (a, b, c):
            for other in (a, b, c):
                assert node.network.send(other.id, batch(ord(node.id)))
            assert not node.frames.get(node.id)  # in a later turn, as those of others
        for node in (a, b, c):
            sent = {other.id: [batch(ord(other.id))] for other in (a, b, c)}
            await node.until(lambda node=node, sent=sent: node.frames == sent)  # type: ignore[misc]
            assert len(node.told) == 2


async def test_frames_arrive_in_order_whatever_their_size(a: Node, b: Node) -> None:
    await connect(a, b)
    sizes = {number: 40_000 if number % 100 == 0 else 17_000 if number % 77 == 0 else 10 for number in range(10_000)}
    for number, size_bytes in sizes.items():
        assert a.network.send("b", batch(number, size_bytes))
    await b.until(lambda: len(b.frames.get("a", [])) == len(sizes))
    assert b.frames["a"] == [batch(number, size_bytes) for number, size_bytes in sizes.items()]


async def test_frames_of_20_mb_arrive_and_stay_as_they_came(a: Node, b: Node) -> None:
    await connect(a, b)
    payloads = [bytes([number]) * 20_000_000 for number in (1, 2)]
    for number, payload in enumerate(payloads):
        assert a.network.send("b", msgspec.structs.replace(batch(number), data=memoryview(payload)))
    assert not a.network.has_room("b")
    await a.until_told("room", "b")
    assert a.network.send("b", batch(2))
    await b.until(lambda: b.numbers("a") == [0, 1, 2])
    received = [frame.data for frame in b.frames["a"] if isinstance(frame, DeliverBatch)]
    assert received[:2] == payloads


async def test_what_went_and_came_is_counted_without_heartbeats(a: Node, b: Node) -> None:
    await connect(a, b)
    for number in range(3):
        a.network.send("b", batch(number, 1000))
    await b.until(lambda: len(b.numbers("a")) == 3)
    size_bytes = sum(len(encode_peer(batch(number, 1000))) for number in range(3))
    sent, received = a.network.stats("b"), b.network.stats("a")
    assert (sent.frames_sent, sent.bytes_sent, sent.frames_received, sent.ups) == (3, size_bytes, 0, 1)
    assert (received.frames_received, received.bytes_received, received.frames_sent) == (3, size_bytes, 0)
    assert a.network.stats("nobody") == PeerStats()


async def test_nothing_is_sent_to_whom_there_is_no_connection(a: Node) -> None:
    assert not a.network.send("b", batch(1))
    assert not a.network.is_up("b")
    assert not a.network.has_room("b")


def _contexts(authority: trustme.CA, trusted: trustme.CA) -> dict[str, Any]:
    """Both sides show a certificate, and look at the other's."""
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    for context in (server, client):
        authority.issue_cert(HOST).configure_cert(context)
        trusted.configure_trust(context)
    server.verify_mode = ssl.CERT_REQUIRED
    return {"server_tls": server, "client_tls": client}


async def test_brokers_talk_over_tls_and_others_do_not() -> None:
    authority = trustme.CA()
    async with (
        a_node("a", **_contexts(authority, authority)) as a,
        a_node("b", **_contexts(authority, authority)) as b,
        a_node("aa", **_contexts(trustme.CA(), authority)) as false,
    ):
        await connect(a, b)
        b.network.set_members({"a": a.address, "aa": false.address})
        with Logged() as logs:
            false.network.set_members({"b": b.address})
            for number in range(3):
                a.network.send("b", batch(number, 1_000_000))
                b.network.send("a", batch(number, 1_000_000))
            await b.until(lambda: b.numbers("a") == [0, 1, 2])
            await a.until(lambda: a.numbers("b") == [0, 1, 2])
            await logs.until("peer_unreachable")
        assert b.count("up") == 1
        assert not false.told


# Breaking


async def test_after_a_cut_there_is_another_connection_and_what_comes_then_is_in_order(a: Node, b: Node) -> None:
    with FaultProxy(f"{HOST}:{b.network.port}") as proxy:
        b.network.set_members({"a": a.address})
        a.network.set_members({"b": split_address(proxy.address)})
        await a.until_told("up")
        for number in range(2000):
            a.network.send("b", batch(number, 1000))
        await b.until(lambda: len(b.numbers("a")) >= 10)
        proxy.cut()
        await a.until_told("down", "b")
        await b.until_told("down", "a")
        first = b.numbers("a")
        assert first == list(range(len(first)))
        proxy.heal()
        await a.until_told("up", "b", 22, times=2)
        for number in range(5000, 5100):
            assert a.network.send("b", batch(number))
        await b.until(lambda: b.numbers("a")[len(first) :] == list(range(5000, 5100)))
    assert [event[0] for event in a.told[:3]] == ["up", "down", "up"]


async def test_a_peer_that_hangs_is_down_by_its_silence(a: Node, b: Node) -> None:
    with FaultProxy(f"{HOST}:{b.network.port}") as proxy:
        b.network.set_members({"a": a.address})
        a.network.set_members({"b": split_address(proxy.address)})
        await a.until_told("up")
        proxy.blackhole()
        await a.until_told("down", "b", "nothing was heard for 0.4 s")
        await b.until_told("down", "a")
        proxy.heal()
        await a.until_told("up", "b", 22, times=2)


async def test_heartbeats_keep_up_a_connection_on_which_nothing_else_is_said(b: Node) -> None:
    b.network.set_members({"a": (HOST, 1)})
    async with a_stranger(b.network.port) as other:
        await other.hello("a", "b")
        assert await other.read() == Hello("b", 22, "a")
        for _ in range(20):  # longer than the silence that is allowed
            ping = await other.read()
            assert isinstance(ping, Ping)
            await other.send(encode_peer(Pong(ping.number)))
        assert b.network.is_up("a")
        assert b.network.stats("a").round_trip_seconds is not None
        await b.until_told("down", "a", "nothing was heard for 0.4 s")  # from here on nobody answers
        assert b.count("up") == 1


async def test_a_ping_is_answered(b: Node) -> None:
    b.network.set_members({"a": (HOST, 1)})
    async with a_stranger(b.network.port) as other:
        await other.hello("a", "b")
        await other.send(encode_peer(Ping(77)))
        while (await other.read()) != Pong(77):
            pass
    await b.until_told("down")
    assert not b.frames


async def test_a_process_that_was_held_up_itself_does_not_take_others_for_silent(a: Node, b: Node) -> None:
    await connect(a, b)
    time.sleep(3 * QUICK.silence_seconds)  # noqa: ASYNC251
    a.network.send("b", batch(1))
    await b.until(lambda: b.numbers("a") == [1])
    assert (a.count("down"), b.count("down")) == (0, 0)


async def test_a_new_life_of_a_broker_is_told_from_the_one_before(b: Node) -> None:
    async with a_node("a", started_ms=1) as a, a_node("c", started_ms=1) as c:
        await connect(a, b, c)
    await b.until_told("down", "a")
    await b.until_told("down", "c")
    async with a_node("a", started_ms=2) as a, a_node("c", started_ms=2) as c:
        await connect(a, b, c)
        assert b.count("up", "a", 2) == b.count("up", "c", 2) == 1
        b.network.send("a", batch(1))
        b.network.send("c", batch(2))
        await a.until(lambda: a.numbers("b") == [1])
        await c.until(lambda: c.numbers("b") == [2])


async def test_a_broker_that_comes_late_is_found_by_dialling_on(a: Node, b: Node) -> None:
    with FaultProxy(f"{HOST}:{b.network.port}") as proxy, Logged() as logs:
        proxy.cut()
        a.network.set_members({"b": split_address(proxy.address)})
        await logs.until("peer_unreachable")
        proxy.heal()  # it does not know us yet
        await logs.until("peer_refused")
        assert logs.reasons("peer_refused")[0] == "a is not a member"
        b.network.set_members({"a": a.address})
        await a.until_told("up", "b", 22)
    assert len(logs.reasons("peer_unreachable")) <= 4, "said once for each reason, not for each attempt"


async def test_who_is_no_member_any_more_is_disconnected_until_it_is_one_again(a: Node, b: Node) -> None:
    await connect(a, b)
    a.network.set_members({})
    assert a.told[-1] == ("down", "b", "it is not a member any more")
    await b.until_told("down", "a")
    await connect(a, b)
    b.network.set_members({"b": b.address})
    assert b.told[-1] == ("down", "a", "it is not a member any more")
    await a.until_told("down", "b", times=2)
    await connect(a, b)
    assert (a.count("up"), b.count("up")) == (3, 3)


async def test_who_is_a_member_for_a_moment_only_is_not_connected(a: Node, b: Node) -> None:
    b.network.set_members({"a": a.address})
    for _ in range(20):
        a.network.set_members({"b": b.address})
        await asyncio.sleep(0)
        a.network.set_members({})
    await connect(a, b)
    a.network.send("b", batch(1))
    await b.until(lambda: b.numbers("a") == [1])
    assert (a.count("up"), a.count("down")) == (1, 0)


async def test_a_changed_address_is_dialled_and_the_same_one_is_left_alone(a: Node, b: Node) -> None:
    await connect(a, b)
    async with a_node("b", started_ms=99) as moved:
        moved.network.set_members({"a": a.address})
        a.network.set_members({"b": b.address})
        assert a.network.is_up("b")
        a.network.set_members({"b": moved.address})
        assert a.told[-1] == ("down", "b", "its address has changed")
        await a.until_told("up", "b", 99)


async def test_a_callback_that_fails_ends_its_connection_and_no_other(a: Node, b: Node) -> None:
    async with a_node("c") as c:
        await connect(a, b, c)
        b.fails_at = batch(13)
        with Logged() as logs:
            a.network.send("b", batch(13))
            a.network.send("b", batch(14))
            await b.until_told("down", "a")
            await a.until_told("up", "b", times=2)
        assert [entry["event"] for entry in logs.entries].count("peer_frame_failed") == 1
        assert "by order of a test" in next(event[2] for event in b.told if event[0] == "down")
        assert b.numbers("a") == [13]
        assert (b.count("down", "c"), c.count("down")) == (0, 0)


# Strangers


def hello(broker_id: str = "a", to: str = "b", **more: int) -> bytes:
    return bytes(encode_peer(Hello(broker_id, 1, to, **more)))


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (hello(to="x"), "a means x, and this is b"),
        (hello("x"), "x is not a member"),
        (hello("b"), "b is not a member"),
        (hello("c"), "c is to be dialled by b"),
        (hello(protocol=1), "broker b has peer protocol 2; broker a knows it up to 1"),
        (bytes(encode_peer(Ping(1))), "Ping before Hello"),
        (bytes(encode_peer(batch(1))), "DeliverBatch before Hello"),
        (b"GET / HTTP/1.1\r\nhost: b\r\n\r\n", "bytes"),
        (LENGTH.pack(3) + b"abc", "not a frame"),
        (LENGTH.pack(0), "not a frame"),
        (LENGTH.pack(HELLO_BYTES_MAX + 1), f"{HELLO_BYTES_MAX} are allowed"),
        (LENGTH.pack(0xFFFFFFFF), "4294967295 bytes"),
    ],
)
async def test_a_hello_that_does_not_fit_is_refused_and_the_reason_is_logged(b: Node, first: bytes, says: str) -> None:
    with socket.create_server((HOST, 0)) as silent, Logged() as logs:
        b.network.set_members({"a": (HOST, 1), "c": silent.getsockname()})  # c is dialled, and does not answer
        async with a_stranger(b.network.port) as stranger:
            await stranger.send(first)
            await stranger.until_closed()
    assert [entry["event"] for entry in logs.entries] == ["peer_refused"]
    assert says in logs.entries[0]["reason"]
    assert not b.told


async def test_l18_a_broker_that_is_called_by_a_newer_one_says_its_own_number(b: Node) -> None:
    b.network.set_members({"a": (HOST, 1)})
    with Logged() as logs:
        async with a_stranger(b.network.port) as stranger:
            await stranger.hello("a", "b", protocol=3)
            answer = await stranger.read()
            assert isinstance(answer, Hello)
            assert answer.protocol == 2
            await stranger.until_closed()
    assert [entry["event"] for entry in logs.entries] == ["peer_refused"]
    assert "broker a has peer protocol 3; broker b knows it up to 2" in logs.entries[0]["reason"]
    assert not b.told


async def test_l18_a_broker_that_calls_a_newer_one_hears_its_number(a: Node) -> None:
    with socket.create_server((HOST, 0)) as server, Logged() as logs:
        server.setblocking(False)
        a.network.set_members({"b": server.getsockname()})
        connection, _ = await asyncio.get_running_loop().sock_accept(server)
        with connection:
            newer = Stranger(connection)
            assert isinstance(await newer.read(), Hello)
            await newer.hello("b", "a", protocol=3)
            await newer.until_closed()
            await a.until(lambda: any("unreachable" in entry["event"] for entry in logs.entries))
    assert "broker b has peer protocol 3; broker a knows it up to 2" in logs.entries[0]["reason"]
    assert not a.told


def nested() -> bytes:
    """A frame whose details lie so deep in each other that no decoder follows."""
    head = b"".join(map(msgspec.msgpack.encode, ("refused", 1, "code", "message")))
    return b"\x95" + head + b"\x81\xa1k" + b"\x91" * 100_000 + b"\x01"


@pytest.mark.parametrize(
    ("then", "says"),
    [
        (hello(), "Hello twice"),
        (LENGTH.pack(FRAME_BYTES_MAX + 1), "bytes"),
        (LENGTH.pack(4) + b"abcd", "not a frame"),
        (LENGTH.pack(len(nested())) + nested(), ""),
    ],
)
async def test_what_no_broker_says_ends_the_connection(b: Node, then: bytes, says: str) -> None:
    b.network.set_members({"a": (HOST, 1)})
    async with a_stranger(b.network.port) as stranger:
        await stranger.hello("a", "b")
        assert await stranger.read() == Hello("b", 22, "a")
        await stranger.send(encode_peer(batch(1)) + then + encode_peer(batch(2)))
        await stranger.until_closed()
        await b.until_told("down", "a")
    assert b.numbers("a") == [1]
    assert says in b.told[-1][2]


async def test_a_hello_must_come_in_time_however_busy_the_stranger_is() -> None:
    limits = replace(QUICK, hello_seconds=0.2)
    async with a_node("b", limits=limits) as b:
        b.network.set_members({"a": (HOST, 1)})
        with Logged() as logs:
            async with a_stranger(b.network.port) as silent, a_stranger(b.network.port) as slow:
                trickle = asyncio.create_task(slow.trickle(hello()))
                await logs.until("peer_refused", times=2)
                trickle.cancel()
                await silent.until_closed()
                await slow.until_closed()
        assert [entry["reason"] for entry in logs.entries] == ["no hello in 0.2 s"] * 2
        assert not b.told


async def test_strangers_are_let_in_up_to_their_number() -> None:
    async with a_node("b", limits=replace(QUICK, strangers_max=2)) as b:
        b.network.set_members({"a": (HOST, 1)})
        async with a_stranger(b.network.port) as first, a_stranger(b.network.port):
            async with a_stranger(b.network.port) as third:
                await third.until_closed()
            await first.hello("a", "b")
            await b.until_told("up", "a")
            async with a_stranger(b.network.port) as fourth:  # there is room again
                await fourth.hello("a", "b", started_ms=2)
                await b.until_told("up", "a", 2)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (hello("c", "a"), "b was dialled, and c answers"),
        (hello("b", "x"), "b means x, and this is a"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "bytes"),
    ],
)
async def test_who_answers_for_another_is_not_taken_for_it(a: Node, answer: bytes, says: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    with Logged() as logs:
        a.network.set_members({"b": server.sockets[0].getsockname()})
        await logs.until("peer_unreachable")
    a.network.set_members({})
    server.close()
    await server.wait_closed()
    assert says in logs.entries[0]["reason"]
    assert not a.told


async def test_a_newer_connection_of_a_broker_replaces_the_one_before(b: Node) -> None:
    b.network.set_members({"a": (HOST, 1)})
    async with a_stranger(b.network.port) as first, a_stranger(b.network.port) as second:
        await first.hello("a", "b", started_ms=1)
        await b.until_told("up", "a", 1)
        await second.hello("a", "b", started_ms=2)
        await first.until_closed()
        await b.until_told("up", "a", 2)
        assert b.told == [("up", "a", 1), ("down", "a", "a newer connection has replaced it"), ("up", "a", 2)]
        b.network.send("a", batch(7))
        assert await second.read() == Hello("b", 22, "a")
        assert await next_batch(second) == batch(7)
        assert b.network.stats("a").ups == 2


async def next_batch(stranger: Stranger) -> AnyPeerFrame:
    while isinstance(frame := await stranger.read(), Ping | Pong | Hello):
        pass
    return frame


# Bounds

TIGHT = PeerLimits(silence_seconds=60, outbox_bytes_max=1 << 20, close_seconds=0.1)
SIZE_BYTES = 50_000


async def filled(node: Node) -> int:
    """Send until the other side has no more room. How many frames that took."""
    sent = 0
    while node.network.has_room("a"):
        assert node.network.send("a", batch(sent, SIZE_BYTES))
        sent += 1
        await asyncio.sleep(0)
        assert sent * SIZE_BYTES < 100 << 20
    return sent


async def test_who_does_not_read_has_no_room_until_it_does() -> None:
    async with a_node("b", limits=TIGHT) as b:
        b.network.set_members({"a": (HOST, 1)})
        async with a_stranger(b.network.port) as reader:
            await reader.hello("a", "b")
            await b.until_told("up")
            sent = await filled(b)
            assert b.network.is_up("a")
            assert b.network.stats("a").waiting_bytes > TIGHT.outbox_bytes_max
            assert b.count("room") == 0
            for number in range(sent):
                assert await next_batch(reader) == batch(number, SIZE_BYTES)
            await b.until_told("room", "a")
            assert b.network.has_room("a")
            assert b.count("room") == 1
            assert b.network.send("a", batch(sent))
            assert await next_batch(reader) == batch(sent)


async def test_who_takes_nothing_of_twice_the_bound_is_given_up() -> None:
    async with a_node("b", limits=TIGHT) as b:
        b.network.set_members({"a": (HOST, 1)})
        async with a_stranger(b.network.port) as reader:
            await reader.hello("a", "b")
            await b.until_told("up")
            sent = await filled(b)
            while b.network.send("a", batch(sent, SIZE_BYTES)):
                assert b.network.stats("a").waiting_bytes <= 2 * TIGHT.outbox_bytes_max + SIZE_BYTES + 100
                sent += 1
            assert not b.network.is_up("a")
            assert b.count("down") == 0  # nobody is told anything while something is sent
            await b.until_told("down", "a", "it does not take what it is sent")
            await reader.until_closed()


async def test_a_flood_of_pings_costs_no_more_than_the_bound() -> None:
    async with a_node("b", limits=replace(TIGHT, outbox_bytes_max=50_000)) as b:
        b.network.set_members({"a": (HOST, 1)})
        async with a_stranger(b.network.port) as reader:
            await reader.hello("a", "b")
            for _ in range(100):
                await reader.send(encode_peer(Ping(1)) * 10_000)
            await reader.send(encode_peer(batch(1)))
            await b.until(lambda: b.numbers("a") == [1])
            assert b.network.stats("a").waiting_bytes <= 50_100
            assert b.network.has_room("a")


async def test_heartbeats_do_not_give_up_who_was_sent_as_much_as_it_may_be() -> None:
    async with a_node("b", limits=TIGHT) as b:
        b.network.set_members({"a": (HOST, 1)})
        async with a_stranger(b.network.port) as reader:
            await reader.hello("a", "b")
            await b.until_told("up")
            await filled(b)
            b.network.send("a", batch(1, 2 * TIGHT.outbox_bytes_max))
            await reader.send(encode_peer(Ping(1)) * 10 + encode_peer(batch(2)))
            await b.until(lambda: b.numbers("a") == [2])
            assert b.network.is_up("a")


# The end


async def test_what_was_sent_before_the_end_still_arrives(a: Node, b: Node) -> None:
    await connect(a, b)
    for number in range(100):
        a.network.send("b", batch(number, 10_000))
    await a.network.close()
    assert a.told[-1] == ("down", "b", "this broker is closing")
    await b.until_told("down", "a")
    assert b.numbers("a") == list(range(100))
    assert not a.network.send("b", batch(1))


async def test_the_end_waits_for_nobody_who_does_not_read_dial_or_say_hello() -> None:
    async with a_node("b", limits=TIGHT) as b:
        b.network.set_members({"a": (HOST, 1), "c": (HOST, 1), "d": ("no.such.host.invalid", 1), "e": (HOST, 70_000)})
        async with a_stranger(b.network.port) as reader, a_stranger(b.network.port) as silent:
            await reader.hello("a", "b")
            await b.until_told("up")
            await filled(b)
            await b.network.close()
            assert b.told[-1] == ("down", "a", "this broker is closing")
            await silent.until_closed()
            await reader.until_closed()
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("dial-")]
            await b.network.close()  # once more does no harm

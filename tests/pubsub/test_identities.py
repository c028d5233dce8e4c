"""Subscribers by identity (P1, P8; seed 002, ClusterIdentity): one of all who offer gets the messages, and when it is
gone the next goes on where it was."""

import asyncio
import sys
import threading

import pytest

import sulina
from sulina.client import Client, Message
from sulina.core.topic import Policy
from sulina.errors import PubSubError, TopicNotFound
from tests.pubsub.forms import WAIT_SECONDS_MAX, Form, Inbox
from tests.support.cluster_world import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

IDENTITY = "billing"
SLOW = "/default/slow"


async def wait_acked(client: Client, topic: str, count: int) -> None:
    """Return when the cursor of the identity says so."""

    async def is_acked() -> bool:
        info = await client.admin.subscription(topic, IDENTITY)
        return sum(cursor.offset for cursor in info.cursors) == count

    await until(f"{count} are acked", is_acked)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_p8_one_of_all_who_offer_serves_and_the_next_goes_on_where_it_was(form: Form, partitions: int) -> None:
    topic = await form.topic(partitions)
    near, far = await form.others(topic)
    publisher, (first, wire), second = await form.at(near), await form.open_wire(near), await form.open(far)
    serving, waiting, everybody = Inbox(), Inbox(), Inbox()
    await first.subscribe(topic, serving, identity=IDENTITY)
    await second.subscribe(topic, waiting, identity=IDENTITY)
    await publisher.subscribe(topic, everybody)  # one without an identity gets everything, as ever
    for number in range(20):
        await publisher.publish(topic, number, key=str(number))
    assert sorted(await serving.wait(20)) == list(range(20))
    await wait_acked(publisher, topic, 20)
    serving.gate.clear()
    await publisher.publish(topic, 20)
    await serving.wait_called(21)
    await wire.cut()  # it is gone without a word, and has not acked what it handles
    assert await waiting.wait(1) == [20]
    await publisher.publish(topic, 21)
    assert await waiting.wait(2) == [20, 21]
    await wait_acked(publisher, topic, 22)
    assert len(await everybody.wait(22)) == 22
    serving.gate.set()


async def test_p8_who_comes_back_alone_goes_on_where_the_identity_was(form: Form) -> None:
    topic = await form.topic()
    near, far = await form.others(topic)
    publisher, first = await form.at(near), await form.open(near)
    before, after = Inbox(), Inbox()
    subscriber = await first.subscribe(topic, before, identity=IDENTITY)
    await publisher.publish_batch(topic, [0, 1, 2])
    assert await before.wait(3) == [0, 1, 2]
    await subscriber.unsubscribe()
    await publisher.publish_batch(topic, [3, 4])
    await (await form.open(far)).subscribe(topic, after, identity=IDENTITY)
    assert await after.wait(2) == [3, 4]
    assert before.payloads == [0, 1, 2]


async def test_p8_one_that_fails_hands_over_and_the_order_is_kept(form: Form) -> None:
    topic = await form.topic()
    near, far = await form.others(topic)
    publisher = await form.at(near)
    failing, other = Inbox(), Inbox()
    failing.failing = ValueError("not today")
    await publisher.subscribe(topic, failing, identity=IDENTITY)
    await (await form.at(far)).subscribe(topic, other, identity=IDENTITY)
    await publisher.publish_batch(topic, list(range(10)))
    assert await other.wait(10) == list(range(10))
    assert (failing.calls, failing.payloads) == (1, [])


async def test_an_identity_of_a_best_effort_topic_gets_what_comes(form: Form) -> None:
    topic = await form.topic(delivery="non_reliable")
    near, far = await form.others(topic)
    first, second, publisher = await form.open(near), await form.open(far), await form.at(near)
    serving, waiting = Inbox(), Inbox()
    await first.subscribe(topic, serving, identity=IDENTITY)
    await second.subscribe(topic, waiting, identity=IDENTITY)
    assert (await publisher.publish(topic, 0)).is_accepted
    assert await serving.wait(1) == [0]
    await first.close()
    assert (await publisher.publish(topic, 1)).is_accepted
    assert await waiting.wait(1) == [1]
    assert serving.payloads == [0]


async def test_p1_identities_are_for_threads_too_and_their_faults_are_pubsub_errors(form: Form) -> None:
    topic = await form.topic()
    url = form.url((await form.others(topic))[0])
    await asyncio.to_thread(_serve_for_threads, url, topic)


def _serve_for_threads(url: str, topic: str) -> None:
    done, found = threading.Event(), []

    def handle(message: Message) -> None:
        found.append((message.payload, threading.current_thread()))
        if len(found) == 2:
            done.set()

    with sulina.connect_sync(url) as client:
        if url == "memory:":  # a node of its own
            client.admin.create_topic(topic)
        with pytest.raises(PubSubError) as raised:
            client.subscribe("/default/there-is-none", handle, identity=IDENTITY)
        assert isinstance(raised.value, TopicNotFound)
        subscriber = client.subscribe(topic, handle, identity=IDENTITY, name="one")
        assert (subscriber.name, subscriber.is_attached) == ("one", True)
        client.publish_batch(topic, ["a", "b"])
        assert done.wait(WAIT_SECONDS_MAX)
        assert [payload for payload, _ in found] == ["a", "b"]
        assert {thread for _, thread in found}.isdisjoint({threading.current_thread()})
        subscriber.unsubscribe()
        assert subscriber.wait_removed(WAIT_SECONDS_MAX) is None
        assert client.admin.subscription(topic, IDENTITY).cursors[0].offset == 2


SERVER = """
import asyncio, sys, sulina

async def main(url, topic, identity):
    async def handle(message):
        print(message.payload, flush=True)
        if message.payload == "stay":
            await asyncio.sleep(3600)

    async with sulina.connect(url) as client:
        await client.subscribe(topic, handle, identity=identity)
        print("ready", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_p8_the_process_that_serves_is_killed_and_another_goes_on(there: Form) -> None:
    topic = await there.topic()
    near, far = await there.others(topic)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, there.url(near), topic, IDENTITY, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            assert await process.stdout.readline() == b"ready\n"
            inbox, publisher = Inbox(), await there.at(far)
            await publisher.subscribe(topic, inbox, identity=IDENTITY)
            for payload in ("one", "two"):
                await publisher.publish(topic, payload)
                assert await process.stdout.readline() == f"{payload}\n".encode()
            await wait_acked(publisher, topic, 2)
            await publisher.publish_batch(topic, ["stay", "three"])
            assert await process.stdout.readline() == b"stay\n"
        assert inbox.payloads == []
    finally:
        process.kill()
        await process.wait()
    assert await inbox.wait(2) == ["stay", "three"]


async def test_p8_a_slow_handler_gets_every_message_once_and_in_order() -> None:
    """P8, P12: messages that wait for it do not time out, come again or count as failed."""
    handled: list[int] = []
    is_done = asyncio.Event()

    async def handler(message: Message) -> None:
        await asyncio.sleep(0.08)  # work
        handled.append(message.offset)
        if message.offset == 19:
            is_done.set()

    async with sulina.connect("memory:") as client:
        await client.admin.create_topic(SLOW, policy=Policy(ack_timeout_seconds=1.0, deliveries_max=2))
        await client.subscribe(SLOW, handler, identity="billing")
        for _ in range(20):  # one by one: the records of a batch are sent together
            (await client.publish(SLOW, b"work")).raise_for_status()
        await is_done.wait()
    assert handled == list(range(20))

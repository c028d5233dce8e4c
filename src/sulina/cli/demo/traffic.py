"""The producers and the consumer of the demo, written with the Python client as in any application.

Nothing here handles the node's death: the client reconnects, and repeats requests that were not answered.
"""

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

from sulina.cli.demo.tally import Order, SequenceCheck, Tally

if TYPE_CHECKING:
    from sulina.client import Client, Message

TOPIC = "/default/orders"
SUBSCRIPTION = "demo"
PARTITIONS = 2
LANES = 8
RECORDS_A_BATCH = 5
DRAIN_SECONDS_MAX = 15.0
SAMPLE_SECONDS = 0.17  # out of step with the batches
SCHEMA = {
    "kind": "json",
    "definition": {
        "type": "object",
        "properties": {
            "lane": {"type": "integer"},
            "number": {"type": "integer"},
            "sent_ns": {"type": "integer"},
            "item": {"type": "string"},
            "amount": {"type": "number"},
        },
        "required": ["lane", "number", "item", "amount"],
    },
}
ITEMS = ("oars", "rope", "nets", "lanterns", "maps", "anchors", "salt", "boots")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Order).decode


async def produce(client: "Client", lane: int, rate: float, tally: Tally, ending: asyncio.Event) -> None:
    """Publish batches of one customer's orders, each acked before the next, until `ending`."""
    from sulina.client import Record

    number = 0
    pause = RECORDS_A_BATCH * LANES / rate
    due = time.monotonic() + pause * lane / LANES
    while not ending.is_set():
        now = time.time_ns()
        orders = [_order(lane, number + place, now) for place in range(RECORDS_A_BATCH)]
        sent = time.monotonic()
        ack = await client.publish_batch(TOPIC, [Record(_encode(order), key=f"customer-{lane}") for order in orders])
        ack.raise_for_status()
        tally.longest_ack_seconds = max(tally.longest_ack_seconds, time.monotonic() - sent)
        number += RECORDS_A_BATCH
        tally.acked.add(RECORDS_A_BATCH)
        tally.acked_numbers[lane] = number
        for part in ack.parts:
            assert part.base_offset is not None  # the topic's acks are `local`
            end = part.base_offset + part.count
            tally.acked_ends[part.partition] = max(end, tally.acked_ends.get(part.partition, 0))
        tally.changed.set()
        due = max(due + pause, time.monotonic())
        await asyncio.sleep(due - time.monotonic())


def _order(lane: int, number: int, now_ns: int) -> Order:
    item = (5 * number + lane) % len(ITEMS)
    return Order(lane=lane, number=number, sent_ns=now_ns, item=ITEMS[item], amount=(137 * number % 9000 + 950) / 100)


async def consume(client: "Client", tally: Tally) -> None:
    """Consume the subscription for ever. Records that are redelivered are recognised by their offset."""
    async with client.consumer(TOPIC, SUBSCRIPTION, mode="exclusive", start="earliest", credit=2000) as messages:
        async for message in messages:
            order = _decode(message.value or b"")
            if tally.delivered.take(message.partition, message.offset, order):
                _note_delivery(tally, message, order)
            messages.ack_soon(message)


def _note_delivery(tally: Tally, message: "Message", order: Order) -> None:
    tally.consumed.add(1)
    if tally.is_steady:
        tally.latencies_ms.append((time.time_ns() - order.sent_ns) / 1e6)
    if (now := time.monotonic()) - tally.sampled_at > SAMPLE_SECONDS:
        tally.sampled_at = now
        tally.recent.append(
            f"{message.partition}:{message.offset}  customer-{order.lane}  "
            f"order {order.number}: {order.amount:.2f} for {order.item}"
        )
    tally.changed.set()


async def read_all(client: "Client") -> SequenceCheck:
    """Read the log from its start to its current end, and check it."""
    stored = SequenceCheck()
    async for record in client.read(TOPIC, start="earliest", follow=False):
        stored.take(record.partition, record.offset, _decode(record.value or b""))
    return stored


async def wait_drained(tally: Tally) -> None:
    """Wait until every acked record was delivered, or until that takes too long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS_MAX):
            await tally.wait_until(tally.is_drained)

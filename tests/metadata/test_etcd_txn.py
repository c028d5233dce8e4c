"""Transactions on etcd over a network that loses answers, delays what was sent, and repeats itself.

The server is real. What goes wrong is decided between the client and gRPC, message by message, so that each fate of a
transaction can be had on demand: most of them are rare on a real network, and all of them happen.
"""

import asyncio
import base64
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from typing import Any

import pytest

from sulina.errors import LeaseLost, MetadataFailed, QueueFull
from sulina.metadata import etcd_txn
from sulina.metadata.etcd import EtcdMetadata
from sulina.metadata.etcd_calls import TXN, Method, Unanswered
from sulina.metadata.etcd_channel import EtcdEndpoint
from sulina.metadata.etcd_proto import etcd_pb2 as pb
from sulina.ports import NO_REVISION, Compare, Put, TxnResult
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture

SEEDS = range(4)


class Fate(StrEnum):
    """What becomes of a message."""

    ANSWERED = "answered"
    ANSWER_LOST = "answer lost"  # etcd does it, and nobody hears of it
    LATE = "late"  # it is lost for its sender, and arrives when `deliver` is called
    TWICE = "twice"  # and the second answer is the one that comes through


class Network:
    """Between a store and its endpoints. Calls that write meet the fates that a test chooses."""

    def __init__(self, store: EtcdMetadata) -> None:
        self.fates: list[Fate] = []  # of the next ones; then all are answered
        self.choose: Callable[[], Fate] | None = None
        self.late: list[Callable[[], Awaitable[pb.TxnResponse]]] = []
        self.met: list[Fate] = []
        self.requests: list[pb.TxnRequest] = []  # as they were sent
        for endpoint in store.endpoints.members:
            self._put_between(endpoint)

    async def deliver(self) -> list[pb.TxnResponse]:
        """What was late arrives now."""
        late, self.late = self.late, []
        return [await send() for send in late]

    def _put_between(self, endpoint: EtcdEndpoint) -> None:
        call = endpoint.call

        async def meet(method: Method[Any, Any], request: Any, seconds: float) -> Any:
            if method is not TXN:
                return await call(method, request, seconds)
            self.requests.append(request)
            fate = self.fates.pop(0) if self.fates else self.choose() if self.choose else Fate.ANSWERED
            self.met.append(fate)
            if fate is Fate.LATE:
                self.late.append(lambda: call(method, request, 5.0))
                raise Unanswered("late")
            answer = await call(method, request, seconds)
            if fate is Fate.TWICE:
                answer = await call(method, request, seconds)
            if fate is Fate.ANSWER_LOST:
                raise Unanswered("lost")
            return answer

        endpoint.call = meet  # type: ignore[method-assign,assignment]


@pytest.fixture
async def store(etcd: EtcdServer) -> AsyncIterator[EtcdMetadata]:
    store = await EtcdMetadata.open(etcd.endpoints, prefix=etcd.new_prefix())
    yield store
    await store.close()


@pytest.fixture
async def network(store: EtcdMetadata) -> Network:
    await store.txn(puts=[Put("/before", b"")])  # there is a slot
    return Network(store)


def versions(etcd: EtcdServer, store: EtcdMetadata, prefix: str) -> dict[str, int]:
    """How often each key has been put."""
    first = (store.prefix + prefix).encode()
    key, end = (base64.b64encode(each).decode() for each in (first, first[:-1] + bytes([first[-1] + 1])))
    found = etcd.call("kv/range", {"key": key, "range_end": end}).get("kvs", [])
    return {store.name_of(base64.b64decode(each["key"])): int(each["version"]) for each in found}


def slots(etcd: EtcdServer, store: EtcdMetadata) -> dict[str, int]:
    return versions(etcd, store, "/\0txn/")


async def test_a_transaction_whose_answer_was_lost_is_known_to_be_done(store: EtcdMetadata, network: Network) -> None:
    """U2: a step that was taken is not taken twice."""
    network.fates = [Fate.ANSWER_LOST]
    done = await store.txn(compares=[Compare("/a", NO_REVISION)], puts=[Put("/a", b"1")])
    entry = await store.get("/a")
    assert entry is not None
    assert done == TxnResult(True, entry.revision)
    assert len(network.requests) == 2  # itself, and one that found it out


async def test_a_lost_answer_that_said_no_is_asked_for_again(store: EtcdMetadata, network: Network) -> None:
    revision = (await store.txn(puts=[Put("/a", b"1")])).revision
    network.fates = [Fate.ANSWER_LOST]
    assert not (await store.txn(compares=[Compare("/a", revision - 1)], puts=[Put("/a", b"2")])).is_done
    network.fates = [Fate.ANSWER_LOST]
    assert (await store.txn(compares=[Compare("/a", revision)], puts=[Put("/a", b"2")])).is_done


async def test_what_arrives_after_its_outcome_was_decided_does_nothing(
    etcd: EtcdServer, store: EtcdMetadata, network: Network
) -> None:
    """U14: a transaction that is still under way when it is given up is fenced, not only looked for."""
    network.fates = [Fate.LATE]
    done = await store.txn(puts=[Put("/a", b"1")])
    assert done.is_done
    await store.txn(puts=[Put("/a", b"2")])
    (late,) = await network.deliver()
    assert not late.succeeded
    entry = await store.get("/a")
    assert entry is not None
    assert entry.value == b"2"
    assert versions(etcd, store, "/a") == {"/a": 2}


async def test_without_the_fence_it_would_be_done_twice(
    etcd: EtcdServer, store: EtcdMetadata, network: Network
) -> None:
    """The same history for a client that only repeats what got no answer: this is what the slots are for."""
    network.fates = [Fate.LATE]
    put = pb.RequestOp(put=pb.PutRequest(key=store.key_of("/a"), value=b"1"))
    await store.endpoints.call(TXN, pb.TxnRequest(success=[put]), deadline=store.endpoints.deadline())
    (late,) = await network.deliver()
    assert late.succeeded
    assert versions(etcd, store, "/a") == {"/a": 2}


async def test_the_fence_may_be_lost_late_and_repeated_too(
    etcd: EtcdServer, store: EtcdMetadata, network: Network
) -> None:
    for number, fates in enumerate(itertools.product(Fate, repeat=3)):
        network.fates = list(fates)
        assert (await store.txn(puts=[Put(f"/n/{number:03d}", b"")])).is_done, fates
        network.fates = []
        assert not any(late.succeeded for late in await network.deliver()), fates
    assert versions(etcd, store, "/n/") == {f"/n/{number:03d}": 1 for number in range(len(Fate) ** 3)}


async def test_a_message_that_comes_twice_counts_once(etcd: EtcdServer, store: EtcdMetadata, network: Network) -> None:
    network.fates = [Fate.TWICE]
    done = await store.txn(puts=[Put("/a", b"1")])
    entry = await store.get("/a")
    assert entry is not None
    assert done == TxnResult(True, entry.revision)
    assert versions(etcd, store, "/a") == {"/a": 1}


async def test_a_cancelled_transaction_that_arrives_late_does_nothing(
    etcd: EtcdServer, store: EtcdMetadata, network: Network
) -> None:
    network.fates = [Fate.LATE] * 1000
    writing = asyncio.create_task(store.txn(puts=[Put("/a", b"1")]))
    while len(network.late) < 2:  # noqa: ASYNC110 itself, and its first fence
        await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    network.fates = []
    assert (await store.txn(puts=[Put("/b", b"1")])).is_done  # through the same slot
    assert not any(late.succeeded for late in await network.deliver())
    assert versions(etcd, store, "/a") == {}
    assert len(slots(etcd, store)) == 1


async def test_when_the_outcome_cannot_be_found_out_in_time_that_is_said(etcd: EtcdServer) -> None:
    store = await EtcdMetadata.open(etcd.endpoints, prefix=etcd.new_prefix(), timeout_seconds=0.3)
    await store.txn(puts=[Put("/before", b"")])
    network = Network(store)
    network.fates = [Fate.ANSWER_LOST] * 1000
    with pytest.raises(MetadataFailed) as failed:
        await store.txn(puts=[Put("/a", b"1")])
    assert failed.value.retryable
    network.fates = []
    assert (await store.txn(puts=[Put("/b", b"1")])).is_done
    await store.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_network_makes_a_transaction_count_twice_or_lie(
    etcd: EtcdServer, store: EtcdMetadata, network: Network, seed: int
) -> None:
    """A ledger: every writer adds its own lines to one account, and every line is there once iff it was said to be."""
    chance = random.Random(seed)
    network.choose = lambda: chance.choice([Fate.ANSWERED] * 4 + [*Fate])
    said: dict[str, int] = {}

    async def write(writer: int) -> None:
        for number in range(12):
            while True:
                entry = await store.get("/account")
                before, revision = (int(entry.value), entry.revision) if entry else (0, NO_REVISION)
                line = f"/line/{writer}-{number}"
                done = await store.txn(
                    compares=[Compare("/account", revision)],
                    puts=[Put("/account", b"%d" % (before + 1)), Put(line, b"")],
                )
                if network.late and chance.random() < 0.5:
                    await network.deliver()
                if done.is_done:
                    said[line] = done.revision
                    break

    async with asyncio.TaskGroup() as tasks:
        for writer in range(6):
            tasks.create_task(write(writer))
    network.choose = None
    assert not any(late.succeeded for late in await network.deliver()), seed
    assert set(network.met) == set(Fate)
    entry = await store.get("/account")
    assert entry is not None
    assert int(entry.value) == len(said) == 72, seed
    assert versions(etcd, store, "/line/") == dict.fromkeys(said, 1), seed
    assert {each.key: each.revision for each in (await store.list("/line/")).entries} == said, seed
    assert len(slots(etcd, store)) <= 6


async def test_slots_are_as_many_as_there_are_transactions_at_once(etcd: EtcdServer, store: EtcdMetadata) -> None:
    for number in range(20):
        await store.txn(puts=[Put(f"/{number}", b"")])
    assert len(slots(etcd, store)) == 1
    await asyncio.gather(*(store.txn(puts=[Put(f"/{number}", b"")]) for number in range(200)))
    assert len(slots(etcd, store)) == etcd_txn.SLOTS_MAX
    assert len((await store.list("/")).entries) == 200  # callers do not see them
    await store.close()
    assert slots(etcd, store) == {}


async def test_slots_that_went_with_their_lease_are_made_again(etcd: EtcdServer, store: EtcdMetadata) -> None:
    await store.txn(puts=[Put("/a", b"1")])
    etcd.call("lease/revoke", {"ID": store.transactions.lease_id})
    assert slots(etcd, store) == {}
    assert (await store.txn(puts=[Put("/a", b"2")])).is_done
    assert versions(etcd, store, "/a") == {"/a": 2}
    etcd.call("lease/revoke", {"ID": store.transactions.lease_id})
    ended = await store.lease(60)
    await ended.revoke()
    with pytest.raises(LeaseLost) as lost:  # it is not taken for that of the slots
        await store.txn(puts=[Put("/a", b"3", ended.lease_id)])
    assert lost.value.lease_id == ended.lease_id
    assert (await store.txn(puts=[Put("/a", b"3")])).is_done


async def test_the_lease_of_the_slots_is_renewed_when_that_is_due(store: EtcdMetadata) -> None:
    await store.txn(puts=[Put("/a", b"1")])
    lease_id, due_at = store.transactions.lease_id, store.transactions.renew_at
    store.transactions.renew_at = 0.0
    await store.txn(puts=[Put("/a", b"1")])
    assert store.transactions.lease_id == lease_id
    assert store.transactions.renew_at > due_at


async def test_more_than_may_wait_is_refused_at_once(
    store: EtcdMetadata, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_txn, "WAITING_BYTES_MAX", 100_000)
    writing = [asyncio.create_task(store.txn(puts=[Put("/a", bytes(30_000))])) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await store.txn(puts=[Put("/b", bytes(30_000))])
    assert all(done.is_done for done in await asyncio.gather(*writing))
    assert (await store.txn(puts=[Put("/b", bytes(200_000))])).is_done  # alone, it may have more

"""Answers of a store whose connection was lost: it is confirmed once for all who wait, and in their time."""

import asyncio
import time

import pytest

from sulina.errors import MetadataFailed
from sulina.metadata.etcd import EtcdMetadata
from sulina.metadata.etcd_channel import EtcdEndpoint, EtcdEndpoints
from sulina.ports import Put
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]


def endpoints(timeout_seconds: float = 0.5) -> EtcdEndpoints:
    return EtcdEndpoints(["127.0.0.1:1"], tls=None, user=None, password=None, timeout_seconds=timeout_seconds)


async def answer(_: EtcdEndpoint, __: float) -> str:
    return "answered"


async def ask(store: EtcdEndpoints) -> str:
    return await store.repeat(answer, deadline=store.deadline())


async def test_r10_many_who_wait_share_one_confirmation() -> None:
    store, confirmed = endpoints(), 0

    async def confirm() -> None:
        nonlocal confirmed
        confirmed += 1
        await asyncio.sleep(0)

    store.history.confirm_by(confirm)
    store.connection_lost()
    assert await asyncio.gather(*(ask(store) for _ in range(100))) == ["answered"] * 100
    assert await ask(store) == "answered"
    assert confirmed == 1
    store.connection_lost()
    await ask(store)
    assert confirmed == 2


async def test_r10_a_connection_that_is_lost_while_it_is_confirmed_holds_nobody_up() -> None:
    store = endpoints()

    async def confirm() -> None:
        await asyncio.sleep(0)
        store.connection_lost()  # a first try was lost, the second was answered

    store.history.confirm_by(confirm)
    store.connection_lost()
    async with asyncio.timeout(5):
        assert await ask(store) == "answered"


async def test_r10_what_cannot_be_confirmed_is_told_in_the_time_of_a_call_however_many_wait() -> None:
    store = endpoints()
    store.history.confirm_by(asyncio.Event().wait)  # type: ignore[arg-type]
    store.connection_lost()
    began = time.monotonic()
    async with asyncio.timeout(9):
        failures = await asyncio.gather(*(ask(store) for _ in range(20)), return_exceptions=True)
    assert {type(failure) for failure in failures} == {MetadataFailed}
    assert time.monotonic() - began < 5  # of the ten seconds that they would take one after the other


@pytest.mark.parametrize("is_answered", [True, False])
async def test_r10_a_store_closes_before_a_lost_connection_was_confirmed(etcd: EtcdServer, is_answered: bool) -> None:
    store = await EtcdMetadata.open(etcd.endpoints, prefix=etcd.new_prefix())

    async def confirm() -> None:
        if not is_answered:
            raise store.history.declare("it is another")
        await store.peek("/identity")

    store.history.confirm_by(confirm)
    await store.txn(puts=[Put("/identity", b"1")])
    store.endpoints.connection_lost()
    await store.close()

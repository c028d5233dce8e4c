"""What the contract cannot see of metadata in etcd: servers that restart, networks that fail, long listings and
watches, TLS, users."""

import asyncio
import base64
import contextlib
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sulina.errors import Compacted, InvalidInput, InvalidSettings, LeaseLost, MetadataFailed, MetadataWentBack
from sulina.metadata import etcd as etcd_module
from sulina.metadata import etcd_channel
from sulina.metadata.etcd import EtcdMetadata, EtcdTls
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Change, Compare, Put
from tests.support.etcd import ALONE, EtcdServer, etcd
from tests.support.fault_proxy import FaultProxy

__all__ = ["etcd"]  # a fixture

WAIT_SECONDS = 30.0  # for what must come


@pytest.fixture
async def store(etcd: EtcdServer) -> AsyncIterator[EtcdMetadata]:
    store = await EtcdMetadata.open(etcd.endpoints, prefix=etcd.new_prefix(), watch_queue_changes_max=50)
    yield store
    await store.close()


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One to which anything may be done."""
    with EtcdServer(tmp_path_factory.mktemp("own"), arguments=ALONE) as server:
        yield server


@pytest.fixture
async def own(own_server: EtcdServer) -> AsyncIterator[EtcdMetadata]:
    if not own_server.is_running:
        own_server.restart()
    store = await EtcdMetadata.open(own_server.endpoints, prefix=own_server.new_prefix())
    yield store
    await store.close()


@pytest.fixture
def proxy(etcd: EtcdServer) -> Iterator[FaultProxy]:
    with FaultProxy(etcd.endpoint) as proxy:
        yield proxy


async def next_of(watch: AsyncGenerator[Sequence[Change], None]) -> list[Change]:
    async with asyncio.timeout(WAIT_SECONDS):
        return list(await anext(watch))


# Restarts.


async def test_a_watch_goes_on_through_restarts_without_a_gap_or_a_repeat(
    own_server: EtcdServer, own: EtcdMetadata
) -> None:
    """F2: what a broker follows, it follows."""
    revision = (await own.txn(puts=[Put("/w/first", b"")])).revision
    watch = own.watch("/w/", after=revision - 1)
    seen = await next_of(watch)
    written = [Change("/w/first", b"", revision)]
    for number in range(3):
        await asyncio.to_thread(own_server.restart)
        for side in "ab":
            key = f"/w/{number}-{side}"
            written.append(Change(key, b"", (await own.txn(puts=[Put(key, b"")])).revision))
    while len(seen) < len(written):
        seen += await next_of(watch)
    assert seen == written


async def test_transactions_wait_for_a_server_that_returns_in_time(own_server: EtcdServer, own: EtcdMetadata) -> None:
    revision = (await own.txn(puts=[Put("/a", b"0")])).revision
    own_server.kill()
    writing = asyncio.create_task(own.txn(compares=[Compare("/a", revision)], puts=[Put("/a", b"1")]))
    reading = asyncio.create_task(own.get("/a"))
    await asyncio.to_thread(own_server.restart)
    assert (await writing).is_done
    assert (await reading) is not None


async def test_r10_a_watch_ends_when_the_store_went_back_also_if_its_own_stream_has_not_noticed(
    own: EtcdMetadata,
) -> None:
    """R10: on the new history it would go on from a revision of the old, and hear of nothing before that."""
    revision = (await own.txn(puts=[Put("/a", b"1")])).revision
    watch = own.watch("/", after=revision)
    waiting = asyncio.ensure_future(anext(aiter(watch)))
    await own.txn(puts=[Put("/b", b"1")])
    assert [change.key for change in await waiting] == ["/b"]
    waiting = asyncio.ensure_future(anext(aiter(watch)))
    await asyncio.sleep(0)
    own.history.declare("somebody else noticed it")
    own.history.accept()
    with pytest.raises(MetadataWentBack):
        await asyncio.wait_for(waiting, 5)


async def an_older_copy_at_a_higher_revision(server: EtcdServer, store: EtcdMetadata, copy: Path) -> None:
    """Empty the store after a copy of it was made, so that it counts from 1 again; `/new` shows which of them it is."""
    for number in range(30):
        await store.txn(puts=[Put("/old", str(number).encode())])
    await asyncio.to_thread(server.save, copy)
    await asyncio.to_thread(server.go_back, None)
    with pytest.raises(MetadataWentBack):
        await store.get("/old")
    store.history.accept()
    await store.txn(puts=[Put("/new", b"1")])

    async def has_new() -> None:
        if await store.peek("/new") is None:
            raise store.history.declare("it lacks /new")

    store.history.confirm_by(has_new)


async def test_r10_a_watch_hears_nothing_of_an_older_history_that_is_at_a_higher_revision(
    own_server: EtcdServer, own: EtcdMetadata, tmp_path: Path
) -> None:
    """R10: a store that was emptied counts from 1 again, and then comes back as it was before that."""
    await an_older_copy_at_a_higher_revision(own_server, own, tmp_path / "copy")
    revision = (await own.txn(puts=[Put("/new", b"2")])).revision
    watch = own.watch("/", after=revision)
    await own.txn(puts=[Put("/new", b"3")])
    assert [change.key for change in await next_of(watch)] == ["/new"]
    await asyncio.to_thread(own_server.go_back, tmp_path / "copy")
    with pytest.raises(MetadataWentBack):
        await next_of(watch)
    own.history.accept()  # so that it can be closed


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_r10_no_call_is_answered_by_an_older_history_that_is_at_a_higher_revision(
    own_server: EtcdServer, own: EtcdMetadata, tmp_path: Path, is_waiting: bool
) -> None:
    """R10: before any watch has noticed it, whether a call waited for the store or came when it was back."""
    await an_older_copy_at_a_higher_revision(own_server, own, tmp_path / "copy")
    watch = asyncio.ensure_future(anext(aiter(own.watch("/elsewhere/", after=1))))
    await own.txn(puts=[Put("/new", b"2")])
    await asyncio.to_thread(own_server.kill)
    going = asyncio.ensure_future(asyncio.to_thread(own_server.go_back, tmp_path / "copy"))
    if not is_waiting:
        await going
    answers = await asyncio.gather(
        own.get("/old"),
        own.list("/"),
        own.txn(puts=[Put("/new", b"3")]),
        own.txn(compares=[Compare("/new", NO_REVISION)]),
        own.lease(5),
        return_exceptions=True,
    )
    await going
    assert [type(answer) for answer in answers] == [MetadataWentBack] * 5
    with pytest.raises(MetadataWentBack):
        await watch
    own.history.accept()  # so that it can be closed


async def test_a_lease_lives_through_a_restart_of_the_server(own_server: EtcdServer, own: EtcdMetadata) -> None:
    """F1: a broker that keeps its lease alive keeps its keys."""
    lease = await own.lease(5)
    await own.txn(puts=[Put("/mine", b"", lease.lease_id)])
    own_server.kill()
    renewing = asyncio.create_task(lease.keep_alive())
    await asyncio.to_thread(own_server.restart)
    assert await renewing == 5.0
    assert await own.get("/mine") is not None
    await lease.revoke()
    assert await own.get("/mine") is None


async def test_a_lease_cannot_be_renewed_for_longer_than_it_has(own_server: EtcdServer) -> None:
    """F1: whoever asks is told in time, not after it was too late."""
    own = await EtcdMetadata.open(own_server.endpoints, prefix=own_server.new_prefix(), timeout_seconds=30.0)
    lease = await own.lease(1)
    own_server.kill()
    began = time.monotonic()
    with pytest.raises(MetadataFailed):
        await lease.keep_alive()
    assert time.monotonic() - began < 15.0  # of the thirty that a call has
    await asyncio.to_thread(own_server.restart)
    await own.close()


async def test_calls_to_a_server_that_is_gone_fail_in_time(own_server: EtcdServer) -> None:
    own = await EtcdMetadata.open(own_server.endpoints, prefix=own_server.new_prefix(), timeout_seconds=0.3)
    own_server.kill()
    began = time.monotonic()
    for call in (own.get("/a"), own.txn(puts=[Put("/a", b"")]), own.list("/"), own.lease(10), own.status()):
        with pytest.raises(MetadataFailed) as failed:
            await call
        assert own_server.endpoint in str(failed.value)
    assert time.monotonic() - began < 12.0
    with pytest.raises(MetadataFailed):
        await EtcdMetadata.open(own_server.endpoints, timeout_seconds=0.2)
    await own.close()  # does not wait for it either
    assert time.monotonic() - began < 15.0
    await asyncio.to_thread(own_server.restart)


# Histories.


async def test_a_watch_that_was_away_for_too_long_is_told_to_list_again(
    own_server: EtcdServer, own: EtcdMetadata
) -> None:
    """F2: no missed change goes unnoticed."""
    with FaultProxy(own_server.endpoint) as proxy:
        away = await EtcdMetadata.open([proxy.address], prefix=own.prefix)
        revision = (await own.txn(puts=[Put("/a", b"0")])).revision
        watch = away.watch("/", after=revision - 1)
        assert await next_of(watch) == [Change("/a", b"0", revision)]
        waiting = asyncio.ensure_future(next_of(watch))
        proxy.cut()
        for number in range(3):
            revision_last = (await own.txn(puts=[Put("/a", b"%d" % number)])).revision
        await asyncio.to_thread(own_server.compact, revision_last)
        proxy.heal()
        with pytest.raises(Compacted) as told:
            await waiting
        assert (told.value.after, told.value.oldest) == (revision, revision_last + 1)
        listing = await away.list("/")
        assert listing.entries[0].revision == revision_last
        watch = away.watch("/", after=listing.revision)
        revision = (await own.txn(deletes=["/a"])).revision
        assert await next_of(watch) == [Change("/a", None, revision)]
        await away.close()


async def test_a_delete_at_the_very_revision_of_a_compaction_is_not_lost(
    own_server: EtcdServer, own: EtcdMetadata
) -> None:
    """F1: etcd forgets such a delete, and says nothing to a watch that begins with it; ours is told to list again."""
    before = (await own.txn(puts=[Put("/a", b"")])).revision
    deleted = (await own.txn(deletes=["/a"])).revision
    await asyncio.to_thread(own_server.compact, deleted)
    with pytest.raises(Compacted):
        await next_of(own.watch("/", after=before))
    watch = own.watch("/", after=deleted)
    revision = (await own.txn(puts=[Put("/b", b"")])).revision
    assert await next_of(watch) == [Change("/b", b"", revision)]


async def test_a_compaction_of_what_was_seen_does_not_end_a_watch(own_server: EtcdServer, own: EtcdMetadata) -> None:
    revision = (await own.txn(puts=[Put("/a", b"0")])).revision
    watch = own.watch("/", after=revision - 1)
    assert await next_of(watch) == [Change("/a", b"0", revision)]
    await asyncio.to_thread(own_server.compact, revision)
    await asyncio.to_thread(own_server.restart)
    revision = (await own.txn(puts=[Put("/a", b"1")])).revision
    assert await next_of(watch) == [Change("/a", b"1", revision)]


async def test_answers_in_fragments_are_put_together(store: EtcdMetadata) -> None:
    """A history of 6 MB: etcd sends it in pieces of 1.5 MB, wherever that cuts."""
    value = bytes(100_000)
    before = (await store.list("/")).revision
    written = []
    for number in range(5):
        puts = [Put(f"/{number}/{side}", value) for side in range(12)]
        written.append(((await store.txn(puts=puts)).revision, [put.key for put in puts]))
    watch = store.watch("/", after=before)
    for revision, names in written:
        changes = await next_of(watch)
        assert {change.revision for change in changes} == {revision}
        assert [change.key for change in changes] == names
        assert all(change.value == value for change in changes)


async def test_a_long_history_waits_for_its_reader(store: EtcdMetadata) -> None:
    """Only what comes while a reader is slow counts against it."""
    before = (await store.list("/")).revision
    for number in range(40):
        await store.txn(puts=[Put(f"/{number}/{side}", b"") for side in range(10)])  # 400, and the queue takes 50
    watch = store.watch("/", after=before)
    seen = [await next_of(watch) for _ in range(40)]
    assert [changes[0].key for changes in seen] == [f"/{number}/0" for number in range(40)]


async def test_a_listing_of_many_pages_is_of_one_revision(store: EtcdMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "PAGE_ENTRIES", 10)
    names = [f"/n/{number:03d}" for number in range(95)]
    await store.txn(puts=[Put(name, b"-1") for name in names])
    is_over = False

    async def write() -> None:
        number = 0
        while not is_over:
            await store.txn(puts=[Put(name, b"%d" % number) for name in names])
            number += 1

    writing = asyncio.create_task(write())
    for _ in range(10):
        listing = await store.list("/n/")
        assert [entry.key for entry in listing.entries] == names
        assert len({entry.value for entry in listing.entries}) == 1
        assert {entry.revision for entry in listing.entries} == {listing.entries[0].revision}
        assert listing.entries[0].revision <= listing.revision
    is_over = True
    await writing


async def test_a_listing_starts_again_when_its_history_is_compacted_under_it(
    own_server: EtcdServer, own: EtcdMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "PAGE_ENTRIES", 2)
    for number in range(5):
        await own.txn(puts=[Put(f"/{number}", b"old")])
    reader = await EtcdMetadata.open(own_server.endpoints, prefix=own.prefix)
    (endpoint,) = reader.endpoints.members
    call, pages = endpoint.call, 0

    async def compact_between(method: object, request: object, seconds: float) -> object:
        nonlocal pages
        pages += 1
        if pages == 2:
            revision = (await own.txn(puts=[Put("/4", b"new")])).revision
            await asyncio.to_thread(own_server.compact, revision)
        return await call(method, request, seconds)  # type: ignore[arg-type]

    monkeypatch.setattr(endpoint, "call", compact_between)
    listing = await reader.list("/")
    assert [entry.value for entry in listing.entries] == [b"old"] * 4 + [b"new"]
    assert pages > 3
    await reader.close()


async def test_pages_of_large_values_are_short(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(etcd_channel.OPTIONS) | {"grpc.max_receive_message_length": 4 << 20}
    monkeypatch.setattr(etcd_channel, "OPTIONS", list(options.items()))
    store = await EtcdMetadata.open(etcd.endpoints, prefix=etcd.new_prefix())
    for number in range(10):
        await store.txn(puts=[Put(f"/{number}", bytes(1 << 20))])
    listing = await store.list("/")
    assert [entry.key for entry in listing.entries] == [f"/{number}" for number in range(10)]
    assert all(len(entry.value) == 1 << 20 for entry in listing.entries)
    await store.close()


# Networks.


async def test_an_answer_that_the_network_lost_is_found_out_on_another_way(etcd: EtcdServer, proxy: FaultProxy) -> None:
    """U2: a transaction through a network that swallows its answer is done once, and known to be."""
    store = await EtcdMetadata.open([proxy.address, etcd.endpoint], prefix=etcd.new_prefix(), timeout_seconds=1.5)
    use(store, proxy.address)
    revision = (await store.txn(puts=[Put("/a", b"0")])).revision
    proxy.drop_replies()
    done = await store.txn(compares=[Compare("/a", revision)], puts=[Put("/a", b"1")])
    assert done.is_done
    entry = await store.get("/a")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"1", done.revision)
    await store.close()


async def test_a_network_that_swallows_everything_writes_nothing_twice(etcd: EtcdServer, proxy: FaultProxy) -> None:
    """U14: what a black hole held back arrives long after it was done by another way."""
    store = await EtcdMetadata.open([proxy.address, etcd.endpoint], prefix=etcd.new_prefix(), timeout_seconds=1.5)
    use(store, proxy.address)
    await store.txn(puts=[Put("/a", b"0")])
    proxy.blackhole()
    assert (await store.txn(puts=[Put("/a", b"1")])).is_done
    last = await store.txn(puts=[Put("/a", b"2")])
    proxy.heal()
    async with asyncio.timeout(WAIT_SECONDS):  # until something has come through what was the black hole
        use(store, proxy.address)
        while (await store.status()).endpoint != proxy.address:
            use(store, proxy.address)
    entry = await store.get("/a")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"2", last.revision)
    await store.close()


async def test_one_endpoint_that_heals_in_time_is_enough(etcd: EtcdServer, proxy: FaultProxy) -> None:
    store = await EtcdMetadata.open([proxy.address], prefix=etcd.new_prefix())
    await store.txn(puts=[Put("/a", b"0")])
    for fault in (proxy.cut, proxy.drop_replies, proxy.blackhole):
        before = await store.get("/a")
        assert before is not None
        fault()
        writing = asyncio.create_task(
            store.txn(compares=[Compare("/a", before.revision)], puts=[Put("/a", fault.__name__.encode())])
        )
        await asyncio.sleep(0.2)  # for as long as the network is broken
        proxy.heal()
        assert (await writing).is_done, fault.__name__
    await store.close()


async def test_a_watch_on_a_silent_connection_moves_to_another(etcd: EtcdServer, proxy: FaultProxy) -> None:
    store = await EtcdMetadata.open([proxy.address, etcd.endpoint], prefix=etcd.new_prefix(), timeout_seconds=1.5)
    use(store, proxy.address)
    revision = (await store.txn(puts=[Put("/a", b"0")])).revision
    watch = store.watch("/", after=revision - 1)
    await next_of(watch)
    proxy.blackhole()
    done = await store.txn(puts=[Put("/a", b"1")])  # notices that, and is done on the other way
    began = time.monotonic()
    assert await next_of(watch) == [Change("/a", b"1", done.revision)]
    assert time.monotonic() - began < 5.0  # without waiting for gRPC to find out
    await store.close()


async def test_transactions_do_not_wait_for_each_other(etcd: EtcdServer, proxy: FaultProxy) -> None:
    store = await EtcdMetadata.open([proxy.address], prefix=etcd.new_prefix())
    await asyncio.gather(*(store.txn(puts=[Put(f"/{number}", b"")]) for number in range(32)))
    proxy.delay(0.3)
    began = time.monotonic()
    await asyncio.gather(*(store.txn(puts=[Put(f"/{number}", b"")]) for number in range(32)))
    assert time.monotonic() - began < 32 * 0.3
    await store.close()


class LateAnswers:
    """Holds back the answer to the next call of etcd that has come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_here, self.go_on = asyncio.Event(), asyncio.Event()
        answer = etcd_channel.answer_of

        async def held(call: Awaitable[object]) -> object:
            found = await answer(call)
            monkeypatch.setattr(etcd_channel, "answer_of", answer)
            self.is_here.set()
            await self.go_on.wait()
            return found

        monkeypatch.setattr(etcd_channel, "answer_of", held)


async def test_r10_an_answer_that_outlives_a_recovery_is_asked_for_again_and_raises_no_alarm(
    store: EtcdMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.txn(puts=[Put("/a", b"1")])
    store.history.expect(1 << 40)
    late = LateAnswers(monkeypatch)
    asked = asyncio.create_task(store.get("/a"))
    await late.is_here.wait()
    store.history.declare("it is at an older revision")
    store.history.accept()
    late.go_on.set()
    entry = await asked
    assert entry is not None
    assert store.history.went_back is None


@pytest.mark.parametrize("call", ["get", "txn"])
async def test_r10_an_answer_that_comes_after_the_store_was_found_to_have_gone_back_is_not_believed(
    store: EtcdMetadata, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    await store.txn(puts=[Put("/a", b"1")])
    late = LateAnswers(monkeypatch)
    asked = asyncio.create_task(store.get("/a") if call == "get" else store.txn(puts=[Put("/a", b"2")]))
    await late.is_here.wait()
    store.history.declare("it is at an older revision")
    late.go_on.set()
    with pytest.raises(MetadataWentBack):
        await asked
    store.history.accept()


def use(store: EtcdMetadata, address: str) -> None:
    """Let the next call go there first."""
    addresses = [endpoint.address for endpoint in store.endpoints.members]
    store.endpoints.current = addresses.index(address)


# Bounds.


async def test_what_etcd_would_not_take_is_refused(store: EtcdMetadata) -> None:
    with pytest.raises(InvalidInput, match="bytes"):
        await store.txn(puts=[Put("/a", bytes(1 << 20)), Put("/b", bytes(1 << 20))])
    for key in ("/", "/\0", "/\0txn/mine"):
        with pytest.raises(InvalidInput, match="reserved"):
            await store.txn(puts=[Put(key, b"")])
    names = [f"/{'x' * 1000}{number}" for number in range(TXN_OPERATIONS_MAX)]
    most = [Put(name, bytes(9_000)) for name in names]
    assert (await store.txn(compares=[Compare(name, NO_REVISION) for name in names], puts=most)).is_done


async def test_two_prefixes_are_two_worlds(etcd: EtcdServer) -> None:
    prefix = etcd.new_prefix()
    first = await EtcdMetadata.open(etcd.endpoints, prefix=prefix)
    second = await EtcdMetadata.open(etcd.endpoints, prefix=f"{prefix}/")
    third = await EtcdMetadata.open(etcd.endpoints, prefix=f"{prefix}x")
    revision = (await first.txn(puts=[Put("/a", b"1")])).revision
    assert await second.get("/a") == await first.get("/a") is not None
    assert (await third.list("")).entries == []
    watch = third.watch("", after=revision - 1)
    await third.txn(puts=[Put("/b", b"2")])
    assert [change.key for change in await next_of(watch)] == ["/b"]
    with pytest.raises(InvalidSettings):
        await EtcdMetadata.open(etcd.endpoints, prefix="sulina")
    with pytest.raises(InvalidSettings):
        await EtcdMetadata.open([])
    for store in (first, second, third):
        await store.close()


# TLS and users.


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server with TLS that wants certificates, users with passwords, and tokens that last for a second."""

    server: EtcdServer
    tls: EtcdTls
    stranger: EtcdTls  # whom somebody else vouches for


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    tls = _certificate(folder / "broker", authority, authority)
    _certificate(folder / "server", authority, authority)
    stranger = _certificate(folder / "stranger", trustme.CA(), authority)
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "token.key").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    (folder / "token.pub").write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    token = f"jwt,pub-key={folder}/token.pub,priv-key={folder}/token.key,sign-method=RS256,ttl=1s"
    arguments = [
        *ALONE,
        f"--cert-file={folder}/server/cert",
        f"--key-file={folder}/server/key",
        f"--trusted-ca-file={folder}/server/ca",
        "--client-cert-auth=true",
        f"--auth-token={token}",
        "--bcrypt-cost=4",
    ]
    server = EtcdServer(folder, arguments=arguments, is_tls=True)
    server.tls_context = ssl.create_default_context(cafile=tls.ca)
    server.tls_context.load_cert_chain(str(tls.cert), str(tls.key))
    with server:
        server.call("auth/user/add", {"name": "root", "password": "root"})
        server.call("auth/role/add", {"name": "root"})
        server.call("auth/user/grant", {"user": "root", "role": "root"})
        server.call("auth/user/add", {"name": "broker", "password": "secret"})
        server.call("auth/role/add", {"name": "sulina"})
        permission = {"permType": "READWRITE", "key": _encoded("/sulina/"), "range_end": _encoded("/sulina0")}
        server.call("auth/role/grant", {"name": "sulina", "perm": permission})
        server.call("auth/user/grant", {"user": "broker", "role": "sulina"})
        server.call("auth/enable")
        yield Guarded(server, tls, stranger)


def _certificate(folder: Path, authority: trustme.CA, trusted: trustme.CA) -> EtcdTls:
    folder.mkdir()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    trusted.cert_pem.write_to_path(folder / "ca")
    issued.private_key_pem.write_to_path(folder / "key")
    for pem in issued.cert_chain_pems:
        pem.write_to_path(folder / "cert", append=True)
    return EtcdTls(ca=str(folder / "ca"), cert=str(folder / "cert"), key=str(folder / "key"))


def _encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


async def open_guarded(guarded: Guarded, prefix: str = "/sulina", **others: object) -> EtcdMetadata:
    settings = {"tls": guarded.tls, "user": "broker", "password": "secret", **others}
    return await EtcdMetadata.open(guarded.server.endpoints, prefix=prefix, **settings)  # type: ignore[arg-type]


async def test_a_user_with_a_password_and_a_certificate_may_do_everything_under_its_prefix(guarded: Guarded) -> None:
    async with contextlib.AsyncExitStack() as stack:
        store = await open_guarded(guarded)
        stack.push_async_callback(store.close)
        assert store.path.startswith("etcds://")
        lease = await store.lease(30)
        revision = (await store.txn(puts=[Put("/a", b"1", lease.lease_id)])).revision
        watch = store.watch("/", after=revision - 1)
        assert await next_of(watch) == [Change("/a", b"1", revision)]
        assert await lease.keep_alive() == 30.0
        assert [entry.key for entry in (await store.list("")).entries] == ["/a"]
        await lease.revoke()
        assert [change.value for change in await next_of(watch)] == [None]
        with pytest.raises(LeaseLost):
            await lease.keep_alive()


async def test_a_token_that_has_expired_is_renewed(guarded: Guarded) -> None:
    watching, writing = await open_guarded(guarded), await open_guarded(guarded)
    revision = (await writing.txn(puts=[Put("/a", b"1")])).revision
    tokens = [store.endpoints.credentials.token for store in (watching, writing)]
    assert all(tokens)
    await asyncio.sleep(1.2)  # their time
    watch = watching.watch("/", after=revision - 1)
    assert await next_of(watch) == [Change("/a", b"1", revision)]
    revision = (await writing.txn(puts=[Put("/a", b"2")])).revision
    assert await next_of(watch) == [Change("/a", b"2", revision)]
    for store, token in zip((watching, writing), tokens, strict=True):
        assert store.endpoints.credentials.token != token
        await store.close()


async def test_a_client_without_permission_is_told_so_at_once(guarded: Guarded) -> None:
    began = time.monotonic()
    for wrong in ({"password": "wrong"}, {"user": "nobody"}, {"user": None, "password": None}):
        with pytest.raises(InvalidSettings):
            await open_guarded(guarded, **wrong)
    with pytest.raises(InvalidSettings, match="permission denied"):
        await open_guarded(guarded, prefix="/others")
    assert time.monotonic() - began < 12.0
    with pytest.raises(InvalidSettings, match="cannot be read"):
        await open_guarded(guarded, tls=EtcdTls(ca="/nowhere/ca"))
    with pytest.raises(InvalidSettings, match="needs its key"):
        await open_guarded(guarded, tls=EtcdTls(cert=guarded.tls.cert))


async def test_whom_nobody_vouches_for_does_not_get_in(guarded: Guarded) -> None:
    anybody = trustme.CA()
    fake = Path(str(guarded.tls.ca)).parent / "fake"
    anybody.cert_pem.write_to_path(fake)
    for tls in (
        None,  # clear text
        EtcdTls(ca=guarded.tls.ca),  # no certificate
        guarded.stranger,  # one that etcd does not trust
        EtcdTls(ca=str(fake), cert=guarded.tls.cert, key=guarded.tls.key),  # an etcd that we do not trust
    ):
        with pytest.raises(MetadataFailed):
            await open_guarded(guarded, tls=tls, timeout_seconds=0.3)


async def test_a_user_of_one_prefix_may_compact_and_is_told_how_much_room_there_is(guarded: Guarded) -> None:
    """What every leader does needs no rights beyond its own keys."""
    store = await open_guarded(guarded)
    revision = (await store.txn(puts=[Put("/a", b"")])).revision
    await store.compact(revision)
    space = await store.space()
    assert space.revision >= revision
    assert not space.is_full
    await store.close()


async def test_a_user_is_no_harm_where_etcd_asks_for_none(etcd: EtcdServer) -> None:
    store = await EtcdMetadata.open(etcd.endpoints, prefix=etcd.new_prefix(), user="broker", password="secret")
    assert (await store.txn(puts=[Put("/a", b"")])).is_done
    await store.close()


# Loading.


def test_grpc_is_loaded_by_those_who_use_etcd_only() -> None:
    """A third of the time that a command takes would go there."""
    script = (
        "import sys, sulina, sulina.metadata, sulina.node, sulina.config, sulina.cli\n"
        "import sulina.metadata.etcd_settings\n"
        "assert 'grpc' not in sys.modules and 'google.protobuf' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

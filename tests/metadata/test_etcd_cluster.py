"""Metadata in an etcd of three members: leaders killed and paused, quorums lost, under a ledger that would tell."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

import pytest

from sulina.errors import LeaseLost, MetadataFailed
from sulina.metadata import etcd_lease
from sulina.metadata.etcd import EtcdMetadata
from sulina.metadata.etcd_calls import LEASE_KEEP_ALIVE, Unanswered
from sulina.metadata.etcd_proto import etcd_pb2 as pb
from sulina.ports import NO_REVISION, Change, Compare, Put
from tests.support.etcd import EtcdCluster

QUICK = ("--heartbeat-interval=50", "--election-timeout=500")
TIMEOUT_SECONDS = 1.5
WAIT_SECONDS = 60.0  # for what must come


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), arguments=QUICK) as cluster:
        yield cluster


@pytest.fixture
def cluster(members: EtcdCluster) -> EtcdCluster:
    """All three run."""
    for member in members.members:
        if not member.is_running:
            member.restart()
    members.leader()
    return members


@pytest.fixture
async def store(cluster: EtcdCluster) -> AsyncIterator[EtcdMetadata]:
    prefix = cluster.members[0].new_prefix()
    store = await EtcdMetadata.open(cluster.endpoints, prefix=prefix, timeout_seconds=TIMEOUT_SECONDS)
    yield store
    await store.close()


class Ledger:
    """Writers that add lines to one account, a reader that watches it, and what must hold in the end."""

    def __init__(self, store: EtcdMetadata, writers: int) -> None:
        self._store = store
        self._writers = writers
        self._is_over = False
        self.said: dict[str, int] = {}  # lines, and the revision that was acknowledged
        self.unknown: set[str] = set()
        self.more = asyncio.Event()

    async def write(self, writer: int) -> None:
        for number in itertools.count():
            line = f"/line/{writer}-{number}"
            try:
                while not self._is_over and not await self._add(line):
                    pass
            except MetadataFailed:
                self.unknown.add(line)
            self.more.set()
            if self._is_over:
                return

    async def wait_more(self, lines: int) -> None:
        """Until so many more were acknowledged."""
        until = len(self.said) + lines
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.said) < until:
                self.more.clear()
                await self.more.wait()

    async def run(self, disturb: AsyncIterator[None]) -> None:
        """Write while it is being disturbed, then check everything."""
        before = (await self._store.list("/")).revision
        watching = asyncio.create_task(self._follow(before))
        async with asyncio.TaskGroup() as tasks:
            for writer in range(self._writers):
                tasks.create_task(self.write(writer))
            async for _ in disturb:
                await self.wait_more(20)
            self._is_over = True
        end = (await self._store.txn(puts=[Put("/end", b"")])).revision
        async with asyncio.timeout(WAIT_SECONDS):
            self._check_watched(await watching, end)
        await self._check_stored()

    async def _add(self, line: str) -> bool:
        entry = await self._store.get("/account")
        before, revision = (int(entry.value), entry.revision) if entry else (0, NO_REVISION)
        puts = [Put("/account", b"%d" % (before + 1)), Put(line, b"%d" % (before + 1))]
        done = await self._store.txn(compares=[Compare("/account", revision)], puts=puts)
        if done.is_done:
            self.said[line] = done.revision
        return done.is_done

    async def _follow(self, after: int) -> list[tuple[int, dict[str, bytes | None]]]:
        seen: list[tuple[int, dict[str, bytes | None]]] = []
        async for changes in self._store.watch("/", after=after):
            assert len({change.revision for change in changes}) == 1
            seen.append((changes[0].revision, {change.key: change.value for change in changes}))
            if "/end" in seen[-1][1]:
                break
        return seen

    def _check_watched(self, seen: list[tuple[int, dict[str, bytes | None]]], end: int) -> None:
        """Every revision once, whole and in order."""
        *lines, (last, _) = seen
        assert last == end
        assert all(earlier < later for (earlier, _), (later, _) in itertools.pairwise(seen))
        watched: dict[str, int] = {}
        for number, (revision, changed) in enumerate(lines, start=1):
            ((line, value),) = ((key, value) for key, value in changed.items() if key != "/account")
            assert value == changed["/account"] == b"%d" % number
            assert line not in watched
            watched[line] = revision
        assert {line: watched.get(line) for line in self.said} == self.said
        assert set(watched) <= set(self.said) | self.unknown
        self.watched = watched

    async def _check_stored(self) -> None:
        listing = await self._store.list("/line/")
        assert {entry.key: entry.revision for entry in listing.entries} == self.watched
        assert sorted(int(entry.value) for entry in listing.entries) == list(range(1, len(self.watched) + 1))
        account = await self._store.get("/account")
        assert account is not None
        assert int(account.value) == len(self.watched)


async def test_leaders_that_are_killed_lose_repeat_and_halve_nothing(cluster: EtcdCluster, store: EtcdMetadata) -> None:
    """F2, U14: transactions and a watch go on through changes of the leader, and the ledger adds up."""
    ledger = Ledger(store, writers=4)

    async def disturb() -> AsyncIterator[None]:
        for _ in range(2):
            yield
            leader = await asyncio.to_thread(cluster.leader)
            leader.kill()
            yield
            await asyncio.to_thread(leader.restart)
        yield

    await ledger.run(disturb())


async def test_leaders_that_are_paused_lose_repeat_and_halve_nothing(cluster: EtcdCluster, store: EtcdMetadata) -> None:
    """U14: a member that is silent with its connections open is left for another one, and returns with old news."""
    ledger = Ledger(store, writers=4)

    async def disturb() -> AsyncIterator[None]:
        yield
        leader = await asyncio.to_thread(cluster.leader)
        leader.pause()
        try:
            yield
        finally:
            leader.resume()
        yield

    await ledger.run(disturb())


async def test_without_a_quorum_calls_fail_in_time_and_with_one_they_go_on(
    cluster: EtcdCluster, store: EtcdMetadata
) -> None:
    """F1, F2: no call hangs, none is answered from one member's memory, and watches outlive it."""
    revision = (await store.txn(puts=[Put("/a", b"1")])).revision
    lease = await store.lease(60)
    watch = store.watch("/", after=revision - 1)
    await anext(watch)
    waiting = asyncio.ensure_future(_next_of(watch))
    for member in cluster.members[:2]:
        member.kill()
    calls = {
        "get": store.get("/a"),
        "list": store.list("/"),
        "check": store.txn(compares=[Compare("/a", revision)]),
        "txn": store.txn(compares=[Compare("/a", revision)], puts=[Put("/b", b"never said")]),
        "lease": store.lease(60),
        "keep_alive": lease.keep_alive(),
        "revoke": lease.revoke(),
    }
    began = time.monotonic()
    failures = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert [type(failure) for failure in failures] == [MetadataFailed] * len(calls), dict(
        zip(calls, failures, strict=True)
    )
    assert time.monotonic() - began < TIMEOUT_SECONDS + 1.0
    for member in cluster.members[:2]:
        await asyncio.to_thread(member.restart)
    done = await store.txn(compares=[Compare("/a", revision)], puts=[Put("/a", b"2")])
    assert done.is_done
    async with asyncio.timeout(WAIT_SECONDS):
        changes = list(await waiting)
        while changes[0].key != "/a":  # the one that failed may have been done, or not; the lease, revoked
            changes = list(await anext(watch))
    assert (changes[0].value, changes[0].revision) == (b"2", done.revision)


async def test_a_leader_alone_renews_no_lease_and_reads_nothing(cluster: EtcdCluster, store: EtcdMetadata) -> None:
    """U14: a leader renews leases out of its memory. Cut off from its cluster it still says yes; we ask twice."""
    leader = await asyncio.to_thread(cluster.leader)
    followers = [member for member in cluster.members if member is not leader]
    alone = await EtcdMetadata.open([leader.endpoint], timeout_seconds=TIMEOUT_SECONDS)
    lease = await alone.lease(20)
    assert await lease.keep_alive() == 20.0
    for member in followers:
        member.pause()
    try:
        (endpoint,) = alone.endpoints.members
        with contextlib.suppress(Unanswered):  # after half a second it notices that it is alone
            answer = await endpoint.exchange(LEASE_KEEP_ALIVE, pb.LeaseKeepAliveRequest(id=lease.lease_id), 1.0)
            assert answer.ttl_seconds == 20  # etcd's own word
        calls = (lease.keep_alive(), alone.get("/a"), alone.list("/"), alone.txn(compares=[Compare("/a", 0)]))
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(failure) for failure in failures] == [MetadataFailed] * 4
    finally:
        for member in followers:
            member.resume()
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with contextlib.suppress(MetadataFailed):
                assert await lease.keep_alive() == 20.0
                break
    await alone.close()


async def renewed(store: EtcdMetadata, lease_id: int) -> float:
    """Renew a lease that another client was granted."""
    deadline = store.endpoints.deadline()
    return await etcd_lease.renew(store.endpoints, lease_id, 20.0, store.key_of("/a"), deadline=deadline)


async def test_a_leader_that_was_overtaken_ends_no_lease(cluster: EtcdCluster) -> None:
    """U14: it does not know the leases of its successor, and answers out of its memory that they have ended."""
    leader = await asyncio.to_thread(cluster.leader)
    others = [member.endpoint for member in cluster.members if member is not leader]
    old = await EtcdMetadata.open([leader.endpoint])
    new = await EtcdMetadata.open(others)
    leader.pause()
    try:
        lease = await new.lease(20)  # as soon as there is a successor
        renewing = asyncio.create_task(renewed(old, lease.lease_id))
        await new.get("/a")  # meanwhile the request lies at the door of the old leader
    finally:
        leader.resume()
    assert await renewing == 20.0
    await lease.revoke()
    with pytest.raises(LeaseLost):
        await renewed(old, lease.lease_id)
    await old.close()
    await new.close()


async def test_members_that_are_unreachable_from_the_start_are_passed_over(cluster: EtcdCluster) -> None:
    cluster.members[0].kill()
    cluster.members[1].pause()
    try:
        began = time.monotonic()
        with pytest.raises(MetadataFailed):  # there is no quorum
            await EtcdMetadata.open(cluster.endpoints, timeout_seconds=TIMEOUT_SECONDS)
        assert time.monotonic() - began < TIMEOUT_SECONDS + 1.0
    finally:
        cluster.members[1].resume()
    store = await EtcdMetadata.open(cluster.endpoints)
    status = await store.status()
    assert status.endpoint in cluster.endpoints[1:]
    assert status.leader_id
    assert status.revision >= (await store.list("/")).revision
    assert status.version.startswith("3.")
    assert status.db_bytes > 0
    await store.close()


async def _next_of(watch: AsyncGenerator[Sequence[Change], None]) -> Sequence[Change]:
    return await anext(watch)

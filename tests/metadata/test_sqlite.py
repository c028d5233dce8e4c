"""What only a metadata file can do, or suffer: restarts, kills, faults of the disk, damage, a second process.

The contract that it shares with other stores is in tests/contract/test_metadata.py.
"""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from sulina.errors import Compacted, Corrupt, InvalidInput, LeaseLost, LogLocked, MetadataFailed, QueueFull
from sulina.metadata import SqliteMetadata, sqlite
from sulina.ports import NO_REVISION, Change, Compare, Listing, Put
from sulina.testing import VirtualClock

WAIT_SECONDS = 20.0
KILLS = int(os.environ.get("SULINA_KILLS", "0")) or 6
SEED = int(os.environ.get("SULINA_SEED", "7"))

CHILD = """
import asyncio, os, sys
from sulina.metadata import SqliteMetadata
from sulina.ports import Put

async def main(path):
    store = await SqliteMetadata.open(path)
    print("opened", (await store.list("/")).revision, flush=True)

    async def write(writer):
        for number in range(1_000_000):
            await store.txn(puts=[Put(f"/{writer}/a", b"%d" % number), Put(f"/{writer}/b", b"%d" % number)])
            os.write(1, f"acked {writer} {number}\\n".encode())

    await asyncio.gather(*(write(writer) for writer in range(8)))

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.db")


@contextlib.asynccontextmanager
async def opened(path: str, **options: Any) -> AsyncIterator[SqliteMetadata]:
    store = await SqliteMetadata.open(path, **options)
    try:
        yield store
    finally:
        await store.close()


async def put(store: SqliteMetadata, key: str, value: bytes = b"", lease_id: int = 0) -> int:
    return (await store.txn(puts=[Put(key, value, lease_id)])).revision


async def take(watch: AsyncIterator[Sequence[Change]], revisions: int) -> list[list[Change]]:
    async with asyncio.timeout(WAIT_SECONDS):
        return [list(await anext(watch)) for _ in range(revisions)]


def error_of_a_child(path: str) -> str:
    child = subprocess.run([sys.executable, "-c", CHILD, path], capture_output=True, text=True, check=False)
    assert child.returncode > 0
    return child.stderr


def killed_child(path: str, after_seconds: float, *, once_open: bool) -> tuple[int, dict[str, int]]:
    """The revision that it found, and the last number of each writer that it acked, before it was killed."""
    with subprocess.Popen([sys.executable, "-c", CHILD, path], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline()] if once_open else []
        timer = threading.Timer(after_seconds, child.send_signal, (signal.SIGKILL,))
        timer.start()
        lines += child.stdout.readlines()
        timer.join()
    assert child.returncode == -signal.SIGKILL
    words = [line.split() for line in lines if line.endswith("\n")]
    found = int(words[0][1]) if words else NO_REVISION
    return found, {writer: int(number) for _, writer, number in words[1:]}


# Restarts.


async def test_everything_is_there_after_a_restart(path: str) -> None:
    async with opened(path) as store:
        await put(store, "/a", b"1")
        await store.txn(puts=[Put("/b", b"2"), Put("/c", b"3")])
        await store.txn(deletes=["/b"])
        before = await store.list("/")
    async with opened(path) as store:
        assert await store.list("/") == before
        assert before.revision == 3
        assert (await store.txn(compares=[Compare("/c", 2), Compare("/b", NO_REVISION)])).is_done
        assert await put(store, "/d") == 4


async def test_a_watch_goes_on_where_it_was_after_a_restart(path: str) -> None:
    async with opened(path, history_changes_max=10) as store:
        for number in range(15):
            await put(store, "/a", b"%d" % number)
    async with opened(path, history_changes_max=10) as store:
        watch = store.watch("/", after=5)
        assert await take(watch, 10) == [[Change("/a", b"%d" % number, number + 1)] for number in range(5, 15)]
        await put(store, "/a", b"live")
        assert await take(watch, 1) == [[Change("/a", b"live", 16)]]
        with pytest.raises(Compacted) as told:
            await take(store.watch("/", after=5), 1)
        assert (told.value.after, told.value.oldest) == (5, 7)


async def test_the_history_has_whole_revisions_and_always_the_newest(path: str) -> None:
    async with opened(path, history_changes_max=5) as store:
        await store.txn(puts=[Put(f"/{number}", b"") for number in range(8)])
        assert len((await take(store.watch("/", after=0), 1))[0]) == 8
        await store.txn(puts=[Put(f"/{number}", b"") for number in range(3)])
        await store.txn(puts=[Put(f"/{number}", b"") for number in range(3)])
        with pytest.raises(Compacted) as told:
            await take(store.watch("/", after=1), 1)
        assert told.value.oldest == 3
    async with opened(path, history_changes_max=5) as store:
        assert len((await take(store.watch("/", after=2), 1))[0]) == 3


async def test_leases_have_all_their_time_again_after_a_restart(path: str) -> None:
    clock = VirtualClock()
    async with opened(path, clock=clock) as store:
        lease, ended = await store.lease(10), await store.lease(10)
        await put(store, "/a", b"", lease.lease_id)
        await ended.revoke()
        clock.advance(8)
    clock.advance(100)  # nobody counts while the file is closed
    async with opened(path, clock=clock) as store:
        clock.advance(9)
        assert await store.get("/a") is not None
        clock.advance(2)
        assert await store.get("/a") is None
        assert (await store.list("/")).revision == 2
        assert (await store.lease(10)).lease_id > ended.lease_id > lease.lease_id
    async with opened(path, clock=clock) as store:
        assert (await store.lease(10)).lease_id == ended.lease_id + 2  # never again the same, ended or not
        with pytest.raises(LeaseLost):
            await put(store, "/b", b"", lease.lease_id)


async def test_a_lease_whose_caller_went_away_ends_all_the_same(path: str) -> None:
    clock = VirtualClock()
    async with opened(path, clock=clock) as store:
        asking = asyncio.create_task(store.lease(10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        await store.expire()
        assert store.deadlines.count == 1
        clock.advance(10)
        await store.expire()
        assert store.deadlines.count == 0


# One process at a time.


async def test_a_second_opener_is_told_and_the_first_goes_on(path: str) -> None:
    async with opened(path) as store:
        await put(store, "/a")
        with pytest.raises(LogLocked) as told:
            await SqliteMetadata.open(path)
        assert told.value.path == path
        with contextlib.closing(apsw.Connection(path)) as tool, pytest.raises(apsw.BusyError):
            tool.execute("SELECT * FROM entries").fetchall()
        assert "LogLocked" in await asyncio.to_thread(error_of_a_child, path)
        assert await put(store, "/a") == 2
    async with opened(path) as store:
        assert await put(store, "/a") == 3


async def test_of_two_who_create_the_file_one_gets_it(path: str) -> None:
    results = await asyncio.gather(*(SqliteMetadata.open(path) for _ in range(4)), return_exceptions=True)
    stores = [result for result in results if isinstance(result, SqliteMetadata)]
    assert len(stores) == 1
    assert sum(isinstance(result, LogLocked) for result in results) == 3
    await stores[0].close()
    assert sorted(os.listdir(os.path.dirname(path))) == ["metadata.db", "metadata.db.lock"]


async def test_an_open_that_is_cancelled_leaves_no_lock(path: str) -> None:
    opening = asyncio.create_task(SqliteMetadata.open(path))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with opened(path) as store:
        assert await put(store, "/a") == 1


# Kills.


async def test_what_was_acked_survives_a_kill(path: str) -> None:
    chance = random.Random(SEED)
    revision = NO_REVISION
    for kill in range(KILLS):
        where = f"seed {SEED}, kill {kill}"
        # The first may die while it creates the file.
        found, acked = await asyncio.to_thread(killed_child, path, chance.uniform(0.05, 0.5), once_open=kill > 0)
        assert found == revision, where
        async with opened(path) as store:
            listing = await store.list("/")
            values = {entry.key: int(entry.value) for entry in listing.entries}
            assert listing.revision >= revision + sum(number + 1 for number in acked.values()), where
            for writer, number in acked.items():
                assert values[f"/{writer}/a"] == values[f"/{writer}/b"], where
                assert values[f"/{writer}/a"] in (number, number + 1), where
            oldest = max(0, listing.revision - 100)
            seen = await take(store.watch("/", after=oldest), listing.revision - oldest)
            assert [changes[0].revision for changes in seen] == list(range(oldest + 1, listing.revision + 1)), where
            revision = listing.revision
    assert revision > NO_REVISION


# Faults of the disk.


class Disk(apsw.VFS):
    """The file system, with syncs that can be counted, failed and held, and writes that can be failed."""

    def __init__(self) -> None:
        self._default = apsw.vfs_names()[0]
        self.syncs = 0
        self.on_sync: Callable[[], None] = lambda: None
        self.on_write: Callable[[], None] = lambda: None
        super().__init__("disk-of-a-test", base=self._default, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "DiskFile":  # noqa: N802
        return DiskFile(self, self._default, name, flags)

    def end(self) -> None:
        apsw.set_default_vfs(self._default)
        self.unregister()


class DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, base: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__(base, name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.syncs += 1
        self._disk.on_sync()
        super().xSync(flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.on_write()
        super().xWrite(data, offset)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.end()


def io_error() -> None:
    raise apsw.IOError("the disk is on fire")


def full() -> None:
    raise apsw.FullError("the disk is full")


class Gate:
    """Holds the thread in a sync until the test lets it go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.let_go = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.let_go.wait(WAIT_SECONDS)

    async def wait_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, WAIT_SECONDS)


@pytest.mark.parametrize("where", ["sync", "write"])
@pytest.mark.parametrize("fault", [io_error, full])
async def test_a_failed_commit_fails_its_group_and_nothing_else(
    path: str, disk: Disk, where: str, fault: Callable[[], None]
) -> None:
    async with opened(path) as store:
        await put(store, "/a", b"before")
        before = await store.list("/")
        watch = store.watch("/", after=1)
        live = asyncio.ensure_future(take(watch, 1))
        setattr(disk, f"on_{where}", fault)
        group = [store.txn(puts=[Put("/a", b"%d" % number)]) for number in range(10)]
        failed = await asyncio.gather(*group, store.lease(5), return_exceptions=True)
        assert [type(error) for error in failed] == [MetadataFailed] * 11
        assert path in str(failed[0])
        assert await store.list("/") == before  # reads go on, at the revision that is durable
        setattr(disk, f"on_{where}", lambda: None)
        assert await put(store, "/a", b"after") == 2
        assert await live == [[Change("/a", b"after", 2)]]
        assert (await store.lease(5)).lease_id == 1
        after = await store.list("/")
    async with opened(path) as store:
        assert await store.list("/") == after


async def test_after_a_failed_commit_and_a_crash_the_file_is_one_or_the_other(path: str, disk: Disk) -> None:
    copy = f"{path}.copy"
    async with opened(path) as store:
        await put(store, "/a", b"before")
        disk.on_sync = io_error
        with pytest.raises(MetadataFailed):
            await put(store, "/a", b"unknown")
        for suffix in ("", "-wal"):  # what a crash would leave
            shutil.copy(path + suffix, copy + suffix)
        disk.on_sync = lambda: None
    async with opened(copy) as store:
        listing = await store.list("/")
        assert (listing.entries[0].value, listing.revision) in [(b"before", 1), (b"unknown", 2)]
        seen = await take(store.watch("/", after=0), listing.revision)
        assert seen[-1][0].value == listing.entries[0].value


async def test_keys_of_an_ended_lease_are_hidden_also_when_that_cannot_be_written(path: str, disk: Disk) -> None:
    clock = VirtualClock()
    async with opened(path, clock=clock) as store:
        lease = await store.lease(10)
        await store.txn(puts=[Put("/a", b"", lease.lease_id), Put("/b", b"")])
        clock.advance(10)
        disk.on_sync = io_error
        assert await store.get("/a") is None
        assert [entry.key for entry in (await store.list("/")).entries] == ["/b"]
        with pytest.raises(LeaseLost):
            await lease.keep_alive()
        disk.on_sync = lambda: None
        assert (await store.txn(compares=[Compare("/a", NO_REVISION)])).revision == 2
        assert await take(store.watch("/", after=1), 1) == [[Change("/a", None, 2)]]


async def test_transactions_that_wait_share_a_sync(path: str, disk: Disk) -> None:
    async with opened(path) as store:
        await put(store, "/a")
        disk.syncs = 0
        revisions = await asyncio.gather(*(put(store, f"/{number}") for number in range(64)))
        assert sorted(revisions) == list(range(2, 66))
        assert disk.syncs <= 4


async def test_a_caller_that_was_just_answered_does_not_miss_the_next_group(path: str, disk: Disk) -> None:
    gate = Gate()

    async def write(writer: int) -> None:
        for _ in range(10):
            await put(store, f"/{writer}")

    async with opened(path) as store:
        disk.on_sync, disk.syncs = gate, 0
        first = asyncio.create_task(write(0))
        await gate.wait_reached()
        others = [asyncio.create_task(write(writer)) for writer in range(1, 16)]
        await asyncio.sleep(0)
        gate.let_go.set()
        await asyncio.wait([first, *others])
        assert 10 <= disk.syncs <= 14  # not 20, as if the first and the others took turns


async def test_what_was_asked_for_before_the_close_is_done(path: str, disk: Disk) -> None:
    gate = Gate()
    async with opened(path) as store:
        disk.on_sync = gate
        running = asyncio.create_task(put(store, "/a"))
        await gate.wait_reached()
        waiting = [asyncio.create_task(put(store, "/b")) for _ in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        gate.let_go.set()
        await closing
        assert [await task for task in (running, *waiting)] == [1, 2, 3, 4]
    async with opened(path) as store:
        assert (await store.list("/")).revision == 4


async def test_the_loop_goes_on_while_a_sync_lasts_and_who_waits_can_leave(path: str, disk: Disk) -> None:
    gate = Gate()
    async with opened(path) as store:
        lease = await store.lease(10)
        disk.on_sync = gate
        running, gone = asyncio.create_task(put(store, "/a", b"1")), asyncio.create_task(put(store, "/gone"))
        await gate.wait_reached()
        left, stays = asyncio.create_task(put(store, "/left")), asyncio.create_task(put(store, "/stays"))
        assert await lease.keep_alive() == 10  # needs no disk
        await asyncio.sleep(0)
        for task in (gone, left):
            task.cancel()
        await asyncio.wait([gone, left])
        assert not running.done()
        disk.on_sync = lambda: None
        gate.let_go.set()
        assert await running == 1
        assert await stays == 3  # its group came after that of the two, one of which nobody waited for
        assert [entry.key for entry in (await store.list("/")).entries] == ["/a", "/gone", "/stays"]


async def test_what_waits_is_bounded(path: str, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "WAITING_BYTES_MAX", 10_000)
    gate = Gate()
    async with opened(path) as store:
        await put(store, "/large", bytes(20_000))  # alone, it may be larger
        disk.on_sync = gate
        first = asyncio.create_task(put(store, "/a"))
        await gate.wait_reached()
        others = [asyncio.create_task(put(store, "/b", bytes(1_000))) for _ in range(10)]
        await asyncio.sleep(0)
        refused = [task for task in others if task.done()]
        assert len(refused) == 6
        assert all(isinstance(task.exception(), QueueFull) for task in refused)
        disk.on_sync = lambda: None
        gate.let_go.set()
        await asyncio.wait([first, *others])
        assert (await store.list("/")).revision == 6


# Damage.


async def filled(path: str) -> tuple[Listing, bytes]:
    """A file with a bit of everything, all of it in the one file."""
    chance = random.Random(SEED)
    async with opened(path) as store:
        lease = await store.lease(1_000)
        for number in range(60):
            puts = [Put(f"/{chance.randrange(30)}", chance.randbytes(200), chance.choice([0, lease.lease_id]))]
            await store.txn(puts=puts, deletes=[f"/{chance.randrange(30, 40)}", "/x"])
            await put(store, f"/{30 + number % 10}", b"x" * 300)
        listing = await store.list("/")
    return listing, Path(path).read_bytes()


async def test_a_damaged_file_is_a_clear_error_or_nothing_is_lost(path: str) -> None:
    listing, whole = await filled(path)
    chance = random.Random(SEED)
    found = 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        Path(path).write_bytes(damaged)
        try:
            async with opened(path) as store:
                assert await store.list("/") == listing
                assert await put(store, "/after") == listing.revision + 1
        except (Corrupt, InvalidInput):  # InvalidInput: the mark of the file itself
            found += 1
        Path(f"{path}-wal").unlink(missing_ok=True)
    assert found > 75


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.6, 0.99])
async def test_a_file_cut_short_is_a_clear_error(path: str, part: float) -> None:
    _, whole = await filled(path)
    Path(path).write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(Corrupt, match=r"metadata\.db is damaged"):
        await SqliteMetadata.open(path)


async def test_a_file_of_something_else_is_left_alone(path: str, tmp_path: Path) -> None:
    Path(path).write_bytes(b"# notes\n" * 1000)
    with pytest.raises(Corrupt):
        await SqliteMetadata.open(path)
    assert Path(path).read_bytes() == b"# notes\n" * 1000
    other = str(tmp_path / "other.db")
    connection = apsw.Connection(other)
    connection.execute("CREATE TABLE mine (a)")
    connection.close()
    before = Path(other).read_bytes()
    with pytest.raises(InvalidInput):
        await SqliteMetadata.open(other)
    assert Path(other).read_bytes() == before


async def test_a_place_that_does_not_exist_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MetadataFailed, match="No such file or directory"):
        await SqliteMetadata.open(str(tmp_path / "none" / "metadata.db"))


async def test_what_a_killed_creator_left_is_no_hindrance(path: str) -> None:
    Path(f"{path}.aside").write_bytes(b"half")
    async with opened(path) as store:
        assert await put(store, "/a") == 1
    assert sorted(os.listdir(os.path.dirname(path))) == ["metadata.db", "metadata.db.lock"]

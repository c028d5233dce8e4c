"""An archive and what it is made of, with a store that may fail: claims, slices, reading, forgetting."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from sulina.core.log.archive import MERGE_SLICES_MIN, STATE_EVERY_SLICES
from sulina.core.log.log_state import Appended
from sulina.core.log.retention import Retention
from sulina.core.log.segment import SegmentLimits
from sulina.core.log.stored import bounds
from sulina.errors import (
    ArchiveFailed,
    CorruptCommit,
    CorruptLog,
    CorruptSegment,
    EpochTaken,
    OffsetOutOfRange,
    StaleEpoch,
    VersionConflict,
    VersionNotRetained,
)
from sulina.storage.archive import GRACE_SECONDS, ORPHAN_SECONDS, Archive, NewSlice
from sulina.storage.archive_cache import ArchiveCache
from sulina.storage.directory_log import DirectoryLog, LogOptions
from sulina.storage.files import VolatileFiles
from sulina.storage.objects import Objects
from sulina.storage.slicing import next_slice
from sulina.testing.clock import VirtualClock
from sulina.types import Epoch, Offset, Version
from tests.support.ledger import append_of, records_in
from tests.support.objects import FaultyObjects, MemoryObjects

PATH = "topic=default.orders-part=0/t1"
SMALL = LogOptions(segments=SegmentLimits(segment_bytes_max=1500, index_interval_bytes=300), epoch=Epoch(1))


class World:
    """A log on disk, a store, and an archive of the one in the other."""

    def __init__(self, home: Path) -> None:
        self.clock = VirtualClock()
        self.store = MemoryObjects(self.clock)
        self.log = DirectoryLog(str(home / "log"), files=VolatileFiles(), clock=self.clock, options=SMALL)
        self.log.open()
        self.archive = self.owned(1)
        self.number = 0

    def owned(self, epoch: int, objects: Objects | None = None) -> Archive:
        """An archive that this epoch has claimed."""
        archive = Archive(objects or self.store, PATH, clock=self.clock)
        archive.load()
        archive.claim(Epoch(epoch), f"broker-{epoch}", lambda _: f"holder-{epoch}")
        return archive

    def append(self, count: int = 1, padding_bytes: int = 0) -> None:
        for _ in range(count):
            self.log.append([append_of(self.number, txn_id=f"t{self.number}", padding_bytes=padding_bytes)])
            self.number += 1

    def produce(self, producer: int, *sequences: int) -> None:
        """Append batches of one record each, of a producer."""
        for sequence in sequences:
            [answer] = self.log.append([append_of(0, producer_id=producer, base_sequence=sequence)])
            assert isinstance(answer, Appended), answer

    def next(self, archive: Archive | None = None, *, state: bool = False) -> NewSlice:
        view = (archive or self.archive).view
        found = next_slice(self.log, view, state=self.log.commits.take_checkpoint() if state else None)
        assert found is not None
        return found

    def archived(self, count: int, *, state: bool = False) -> None:
        """So many slices of one batch each."""
        for _ in range(count):
            self.append()
            self.archive.store(self.next(state=state))

    def reader(self, **options: object) -> Archive:
        """Somebody else's eyes, with nothing cached."""
        archive = Archive(self.store, PATH, clock=self.clock, cache=ArchiveCache(**options))  # type: ignore[arg-type]
        archive.load()
        return archive


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def offsets_in(archive: Archive, start: int = 0, max_bytes: int = 1 << 20) -> list[int]:
    found: list[int] = []
    offset = Offset(start)
    while True:
        read = archive.read(offset, max_bytes)
        if read.next_offset == offset:
            return found
        found += [record.offset for record in records_in(read.data, from_offset=offset)]
        offset = read.next_offset


# Claims


def test_u14_after_a_claim_an_older_epoch_adds_nothing_more(world: World) -> None:
    world.archived(2)
    world.append()
    late = world.next()
    newer = world.owned(5)
    with pytest.raises(StaleEpoch):
        world.archive.store(late)
    with pytest.raises(StaleEpoch):
        world.archive.store(late)
    assert newer.load().next_offset == late.offset_start
    assert world.archive.view.epoch == 5


def test_u14_a_lower_epoch_claims_nothing(world: World) -> None:
    world.owned(5)
    with pytest.raises(StaleEpoch, match="epoch 4 is fenced by epoch 5"):
        world.owned(4)


def test_r10_an_epoch_that_another_broker_has_claimed_is_refused(world: World) -> None:
    """A metadata store that was restored gave it twice: neither may write what the other takes for its own."""
    world.owned(5)
    other = world.reader()
    other.load()
    with pytest.raises(EpochTaken, match="epoch 5 was claimed by broker"):
        other.claim(Epoch(5), "another", lambda _: "another-directory")
    assert other.view.holder != "another-directory"


def test_u2_an_epoch_that_was_claimed_is_claimed_again_by_the_same_broker(world: World) -> None:
    again = world.owned(1)
    assert again.view.version == world.archive.view.version
    world.append()
    again.store(world.next(again))


def test_a_claim_asks_who_goes_on_and_asks_again_when_another_was_faster(world: World) -> None:
    asked: list[int] = []

    def holder_after(view: object) -> str:
        if not asked:
            world.archived(1)  # the owner before us, between our look and our claim
        asked.append(world.archive.view.version)
        return f"h{len(asked)}"

    archive = Archive(world.store, PATH, clock=world.clock)
    archive.load()
    before = archive.claim(Epoch(2), "b", holder_after)
    assert (len(asked), archive.view.holder) == (2, "h2")
    assert before.next_offset == archive.view.next_offset == world.log.view.next_offset


@pytest.mark.parametrize("fault", ["request", "reply"])
def test_u2_a_claim_whose_outcome_is_unknown_is_resolved_by_the_next(world: World, fault: str) -> None:
    objects = FaultyObjects(world.store, random.Random(1), [])
    archive = Archive(objects, PATH, clock=world.clock)
    archive.load()
    puts = objects.put_if_absent

    def lost(path: str, data: bytes) -> bool:
        if fault == "reply":
            puts(path, data)
        raise ArchiveFailed(path=path, cause=OSError("lost"))

    objects.put_if_absent = lost  # type: ignore[method-assign]
    with pytest.raises(ArchiveFailed):
        archive.claim(Epoch(2), "b", lambda _: "h2")
    objects.put_if_absent = puts  # type: ignore[method-assign]
    archive.claim(Epoch(2), "b", lambda _: "h2")
    assert (len(world.store.names(".json")), archive.view.epoch, archive.view.holder) == (2, 2, "h2")


# Slices


def test_what_is_archived_is_read_back_as_it_is_in_the_log(world: World) -> None:
    world.append(30, padding_bytes=50)
    world.archive.store(world.next())
    world.append(10, padding_bytes=50)
    world.archive.store(world.next())
    reader = world.reader()
    assert offsets_in(reader) == list(range(world.log.view.next_offset))
    assert offsets_in(reader, max_bytes=1) == list(range(world.log.view.next_offset))
    assert reader.view.log_version == world.log.view.version
    mine = world.log.read(Offset(0), 1 << 20)
    assert bytes(reader.read(Offset(0), len(mine.data)).data) == bytes(mine.data)


def test_l1_what_was_put_but_not_committed_is_not_there(world: World) -> None:
    world.append()
    new = world.next()
    world.archive.put_data(new)
    world.archive.put_commits(new)
    assert world.reader().view.is_empty
    world.archive.add(new)
    assert world.reader().view.next_offset == 1


@pytest.mark.parametrize("is_stored", [True, False])
def test_l2_a_commit_whose_reply_was_lost_is_found_and_never_made_twice(world: World, is_stored: bool) -> None:
    world.append()
    objects = FaultyObjects(world.store, random.Random(1), [])
    archive = world.owned(2, objects)
    puts = objects.put_if_absent

    def lost(path: str, data: bytes) -> bool:
        if is_stored:
            world.store.put_if_absent(path, data)
        raise ArchiveFailed(path=path, cause=OSError("lost"))

    objects.put_if_absent = lost  # type: ignore[method-assign]
    with pytest.raises(ArchiveFailed):
        archive.store(world.next(archive))
    objects.put_if_absent = puts  # type: ignore[method-assign]
    if is_stored:
        with pytest.raises(VersionConflict):
            archive.store(world.next(archive))
        assert next_slice(world.log, archive.view) is None
    else:
        archive.store(world.next(archive))
    assert offsets_in(world.reader()) == [0]
    assert len(archive.view.slices) == 1


def test_a_slice_that_does_not_come_next_is_a_conflict(world: World) -> None:
    world.append()
    first = world.next()
    world.archive.store(first)
    with pytest.raises(VersionConflict):
        world.archive.store(first)


def test_commits_come_back_by_version(world: World) -> None:
    world.archived(5)
    world.append(4)
    world.archive.store(world.next())
    end = Version(world.log.view.version + 1)
    assert [commit.version for commit in world.reader().commits(Version(0), end)] == list(range(end))
    assert [commit.version for commit in world.reader().commits(Version(3), Version(5))] == [3, 4]
    with pytest.raises(VersionNotRetained):
        world.reader().commits(Version(3), Version(end + 1))
    assert world.reader().commits(Version(2), Version(2)) == []


# The state of the log


@pytest.mark.parametrize(
    "archived", ["by its state", "by its commits", "by a state and later commits", "by merged slices"]
)
def test_l13_the_next_owner_knows_what_was_written_and_by_whom(world: World, archived: str) -> None:
    world.append(3)
    world.produce(7, 0, 1)
    world.produce(8, 0)
    world.archive.store(world.next(state=archived in ("by its state", "by a state and later commits")))
    if archived == "by a state and later commits":
        world.produce(7, 2, 3)
        world.archive.store(world.next())
    if archived == "by merged slices":
        world.archived(MERGE_SLICES_MIN)
        assert world.archive.merge() is not None
    seed = world.reader().log_checkpoint()
    mine = world.log.commits.take_checkpoint()
    assert (seed.version, seed.next_offset, seed.epoch) == (mine.version, mine.next_offset, mine.epoch)
    assert (seed.txns, seed.origins) == (mine.txns, mine.origins)
    last = {7: 3 if archived == "by a state and later commits" else 1, 8: 0}
    assert {origin.origin_id: origin.last_seq for origin in seed.origins} == last
    assert [txn.txn_id for txn in seed.txns[:3]] == ["t0", "t1", "t2"]
    assert (seed.start_offset, seed.segments) == (seed.next_offset, ())


def test_the_state_is_found_from_the_first_commit_on_where_there_is_no_state_yet(world: World) -> None:
    world.archived(STATE_EVERY_SLICES // 4)
    assert world.reader().log_checkpoint().txns == world.log.commits.take_checkpoint().txns


def test_u7_without_its_state_an_archive_is_not_taken_over(world: World) -> None:
    world.archived(2, state=True)
    [*_, newest] = world.store.names(".state")
    world.store.delete([newest])
    with pytest.raises(CorruptLog, match="is missing"):
        world.reader().log_checkpoint()
    world.archived(1)
    [*_, commits] = world.store.names(".commits")
    world.store.delete([commits])
    with pytest.raises((CorruptLog, CorruptCommit)):
        world.reader().log_checkpoint()


# Reading


def test_l8_every_flipped_byte_is_detected_and_the_rest_is_read(world: World) -> None:
    world.append(6)
    world.archive.store(world.next())
    [name] = world.store.names(".log")
    whole = world.store.held[name][0]
    places = bounds(memoryview(whole))
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        good = [end for _, at, _, end in places if at <= position]
        world.store.put(name, [damaged])
        reader = world.reader()
        with pytest.raises(CorruptSegment):
            offsets_in(reader, max_bytes=1)
        for offset in range(good[-1] if good else 0):
            assert reader.read(Offset(offset), 1).next_offset <= good[-1]


def test_an_object_that_is_gone_is_damage_and_says_so(world: World) -> None:
    world.archived(2)
    world.store.delete(world.store.names(".log")[:1])
    reader = world.reader()
    with pytest.raises(CorruptSegment, match="it is missing"):
        reader.read(Offset(0))
    assert offsets_in(reader, start=1) == [1, 2]


def test_offsets_outside_are_refused(world: World) -> None:
    world.archived(2)
    with pytest.raises(OffsetOutOfRange):
        world.archive.read(Offset(4))
    assert not world.archive.read(Offset(3)).data
    assert world.archive.read(Offset(2), until=Offset(3)).next_offset == 3


def test_times_are_found(world: World) -> None:
    world.archived(6)  # batch n has 1 + n % 4 records, all of time 1000 + n
    first_of = {1000: 0, 1003: 6, 1004: 10, 1005: 11}
    for timestamp, offset in first_of.items():
        assert world.reader().offset_for_timestamp(timestamp) == offset
    assert world.reader().offset_for_timestamp(2000) is None
    assert world.reader().offset_for_timestamp(1005, before=Offset(11)) is None


def test_large_objects_are_read_by_blocks_and_the_cache_stays_small(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sulina.storage.archive_reader.BLOCK_BYTES", 1024)
    world.append(60, padding_bytes=150)
    world.archive.store(world.next())
    reader = world.reader(bytes_max=4096)
    assert offsets_in(reader, max_bytes=700) == list(range(world.log.view.next_offset))
    assert reader.cache.size_bytes <= 4096
    for offset in random.Random(3).sample(range(world.log.view.next_offset), 40):
        found = reader.read(Offset(offset), 500)
        assert found.start_offset <= offset < found.next_offset


def test_who_reads_on_finds_the_next_block_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.takeover_world import Inline

    monkeypatch.setattr("sulina.storage.archive_reader.BLOCK_BYTES", 1024)
    for _ in range(4):
        world.append(10, padding_bytes=100)
        world.archive.store(world.next())
    objects = FaultyObjects(world.store, random.Random(1), [])
    reader = Archive(objects, PATH, clock=world.clock, readers=Inline())
    reader.load()
    found = reader.read(Offset(0), 300)
    objects.calls.clear()
    objects.is_cut = True
    assert reader.read(found.next_offset, 300).data, "it was fetched ahead"
    with pytest.raises(ArchiveFailed):
        reader.read(Offset(world.log.view.next_offset - 1))


# Forgetting


def test_l15_retention_takes_slices_and_their_objects(world: World) -> None:
    world.archived(6)
    world.archived(1, state=True)
    removed = world.archive.retain(Retention(bytes_max=0))
    assert [slice_.base for slice_ in removed] == [0, 1, 3, 6, 10, 11]
    view = world.reader().view
    assert (view.start_offset, view.next_offset) == (13, 16)
    assert len(world.store.names(".log")) == 1
    assert offsets_in(world.reader(), start=13) == [13, 14, 15]
    assert world.reader().log_checkpoint().txns == world.log.commits.take_checkpoint().txns
    with pytest.raises(VersionNotRetained):
        world.reader().commits(Version(0), Version(1))


def test_a_reader_with_an_old_view_learns_that_its_object_is_gone(world: World) -> None:
    reader = world.reader()
    world.archived(3)
    reader.load()
    world.archived(1, state=True)
    world.archive.retain(Retention(bytes_max=0))
    with pytest.raises(OffsetOutOfRange):
        reader.read(Offset(0))


def test_many_small_slices_become_one_and_nothing_else_changes(world: World) -> None:
    world.archived(MERGE_SLICES_MIN + 3)
    reader = world.reader()
    before = offsets_in(reader)
    merged = world.archive.merge()
    assert merged is not None
    into, parts = merged
    assert (into.base, into.next_offset, len(parts)) == (0, parts[-1].next_offset, MERGE_SLICES_MIN + 3)
    assert world.archive.merge() is None
    assert offsets_in(world.reader()) == before
    end = Version(world.log.view.version + 1)
    assert [commit.version for commit in world.reader().commits(Version(0), end)] == list(range(end))
    old = Archive(world.store, PATH, clock=world.clock)
    old.view = reader.view
    assert offsets_in(old) == before, "whoever has the old view reads on"
    world.clock.advance(GRACE_SECONDS)
    world.archive.tidy()
    assert len(world.store.names(".log")) == 1
    assert offsets_in(world.reader()) == before
    late = world.reader()
    late.view = reader.view
    assert offsets_in(late) == before, "and finds the merged slice when the old ones are gone"
    assert world.reader().log_checkpoint().txns == world.log.commits.take_checkpoint().txns


def test_slices_that_are_damaged_are_not_merged(world: World) -> None:
    world.archived(MERGE_SLICES_MIN)
    name = world.store.names(".log")[3]
    world.store.put(name, [world.store.held[name][0][:-1] + b"?"])
    with pytest.raises(CorruptSegment):
        world.archive.merge()


def test_what_was_put_and_never_counted_is_swept_after_an_hour_and_nothing_else_is(world: World) -> None:
    world.archived(2, state=True)
    kept = set(world.store.held)
    world.append()
    orphan = world.next()
    world.archive.put_data(orphan)
    world.archive.put_commits(orphan)
    world.store.put(f"{PATH}/notes.txt", [b"somebody's"])
    assert world.archive.sweep() == 0
    world.clock.advance(ORPHAN_SECONDS + 1)
    assert world.archive.sweep() == 0, "it is on its way, for all we know"
    world.archive.end_upload(orphan)
    assert world.archive.sweep() == 0, "whatever the clock of the store says of its age"
    world.clock.advance(ORPHAN_SECONDS)
    assert world.archive.sweep() == 2
    assert set(world.store.held) == kept | {f"{PATH}/notes.txt"}


def test_u14_an_owner_that_was_overtaken_sweeps_nothing(world: World) -> None:
    newer = world.owned(2)
    world.append()
    newer.store(world.next(newer))
    world.clock.advance(ORPHAN_SECONDS + 1)
    before = set(world.store.held)
    with pytest.raises(StaleEpoch):
        world.archive.sweep()
    assert set(world.store.held) == before


def test_l11_the_log_of_an_archive_stays_short(world: World) -> None:
    for _ in range(20):
        world.archived(20)
        world.archive.tidy()
        while world.archive.merge() is not None:
            pass
    commits = [name for name in world.store.names(".json") if "checkpoint" not in name]
    assert len(commits) < 200
    assert offsets_in(world.reader()) == list(range(world.log.view.next_offset))


def test_a_topic_that_is_deleted_leaves_nothing(world: World) -> None:
    world.archived(3, state=True)
    world.store.put("other/object", [b"."])
    world.archive.delete_all()
    world.archive.delete_all()
    assert world.store.names() == ["other/object"]


def test_u7_a_damaged_log_of_an_archive_is_never_taken_for_an_empty_one(world: World) -> None:
    world.archived(3)
    first, *_ = world.store.names(".json")

    def damaged(change: Callable[[], None]) -> None:
        held = dict(world.store.held)
        change()
        with pytest.raises((CorruptCommit, CorruptLog)):
            Archive(world.store, PATH, clock=world.clock).load()
        world.store.held = held

    damaged(lambda: world.store.delete([first]))
    damaged(lambda: world.store.put(first, [b"{}\n"]))
    damaged(lambda: world.store.put(first, [b""]))
    assert replace(world.reader().view.slices[0]) == world.archive.view.slices[0]

"""The commit log over any store: replay, checkpoints, clean-up, conflicts."""

import json
import random

import pytest

from sulina.core.log.commit import LAST_CHECKPOINT, Claim, Seal, checkpoint_name, commit_name
from sulina.errors import CorruptCommit, CorruptLog, InvalidInput, StaleEpoch, VersionConflict, VersionNotRetained
from sulina.failpoints import Failpoint
from sulina.storage.commit_log import CommitLog
from sulina.testing.clock import VirtualClock
from sulina.types import Epoch, Offset, Version


class DictStore:
    """A store in memory that counts what is asked of it."""

    location = "memory"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.gets = 0
        self.listed = 0

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self.files.setdefault(name, data) is data

    def get(self, name: str) -> bytes | None:
        self.gets += 1
        return self.files.get(name)

    def list(self, after: str = "") -> list[str]:
        names = sorted(name for name in self.files if name > after)
        self.listed += len(names)
        return names

    def delete(self, name: str) -> None:
        self.files.pop(name, None)


def opened(store: DictStore, writer: str = "a") -> CommitLog:
    log = CommitLog(store, clock=VirtualClock(), writer=writer)
    log.load()
    return log


def grown(store: DictStore, versions: int, *, keep: int = 5) -> CommitLog:
    """A log that has been through so many versions, with checkpoints and clean-up."""
    log = opened(store)
    for number in range(versions):
        log.commit([Claim(epoch=Epoch(number), broker_id="a")], epoch=Epoch(number))
        if log.state.version % 10 == 0 and log.state.version:
            log.write_checkpoint(log.take_checkpoint())
            log.clean_up(Version(log.state.version - keep))
    return log


def test_a_commit_is_there_for_the_next_who_opens() -> None:
    store = DictStore()
    log = grown(store, 3)
    assert opened(store).state == log.state


def test_recovery_reads_the_newest_checkpoint_and_nothing_older_l11() -> None:
    store = DictStore()
    log = grown(store, 1234)
    again = opened(store)
    assert again.state == log.state
    store.gets = store.listed = 0
    opened(store)
    assert store.gets < 10
    assert store.listed < 150


@pytest.mark.parametrize("name", [LAST_CHECKPOINT, checkpoint_name(1230)])
@pytest.mark.parametrize("damage", ["missing", "torn", "flipped", "empty"])
def test_a_lost_or_torn_checkpoint_or_hint_is_no_loss_l8_l11(name: str, damage: str) -> None:
    store = DictStore()
    log = grown(store, 1234)
    data = bytearray(store.files[name])
    if damage == "missing":
        del store.files[name]
    elif damage == "flipped":
        data[random.Random(1).randrange(len(data))] ^= 4
        store.files[name] = bytes(data)
    else:
        store.files[name] = bytes(data[: len(data) // 2]) if damage == "torn" else b""
    again = opened(store)
    assert again.state == log.state
    again.commit([], epoch=again.state.epoch)


def test_a_stale_hint_is_no_loss_l11() -> None:
    store = DictStore()
    grown(store, 205)
    stale = store.files[LAST_CHECKPOINT]
    log = opened(store)
    go_on(log, 900)
    store.files[LAST_CHECKPOINT] = stale
    assert opened(store).state == log.state


def test_two_checkpoints_and_the_commits_since_stay_l12() -> None:
    store = DictStore()
    grown(store, 1234, keep=0)
    checkpoints = sorted(name for name in store.files if "checkpoint.json" in name)
    assert checkpoints == [checkpoint_name(1220), checkpoint_name(1230)]
    assert min(name for name in store.files if name.startswith("0") and "check" not in name) == commit_name(1220)


def test_without_two_valid_checkpoints_nothing_is_cleaned_up_l12() -> None:
    store = DictStore()
    log = opened(store)
    for _ in range(15):
        log.commit([Claim(epoch=Epoch(log.state.epoch + 1), broker_id="a")], epoch=Epoch(log.state.epoch + 1))
    log.write_checkpoint(log.take_checkpoint())
    before = dict(store.files)
    assert log.clean_up(Version(14)) == 0
    assert store.files == before


def test_what_a_crash_left_of_a_clean_up_is_cleaned_up_later_l12() -> None:
    store = DictStore()
    grown(store, 35, keep=0)
    leftover = dict(store.files)
    go_on(opened(store), 40)
    store.files |= leftover
    go_on(opened(store), 20)
    checkpoints = sorted(name for name in store.files if "checkpoint.json" in name)
    assert checkpoints == [checkpoint_name(80), checkpoint_name(90)]
    assert min(name for name in store.files if name.startswith("0") and "check" not in name) == commit_name(80)


def test_a_log_that_begins_at_a_checkpoint_knows_its_oldest_version_after_a_clean_up_l12() -> None:
    store = DictStore()
    log = grown(store, 35)
    log.write_checkpoint(log.take_checkpoint())
    newest = log.state.version
    for name in [name for name in store.files if name < checkpoint_name(newest)]:
        del store.files[name]  # as an owner begins that goes on where an archive ends
    again = opened(store)
    for _ in range(3):
        again.commit([], epoch=again.state.epoch)
        again.write_checkpoint(again.take_checkpoint())
        again.clean_up(Version(0))
    assert again.oldest_version() == newest


def test_a_stray_old_commit_does_not_make_clean_up_long_l12() -> None:
    store = DictStore()
    stray = grown(store, 5).store.get(commit_name(3))
    assert stray is not None
    log = opened(store)
    go_on(log, 3000)
    store.files[commit_name(3)] = stray
    again, before = opened(store), store.gets
    go_on(again, 25)
    assert commit_name(3) not in store.files
    assert store.gets - before < 200


def test_a_commit_that_breaks_the_rules_is_never_stored_l6() -> None:
    store = DictStore()
    log = grown(store, 12)
    before = dict(store.files)
    with pytest.raises(CorruptCommit):
        log.commit([Seal(segment="00000000000000000000.log", offset_end=Offset(1), size=1)], epoch=log.state.epoch)
    assert store.files == before
    assert log.commit([], epoch=Epoch(11)).version == 12
    assert opened(store).state == log.state


@pytest.mark.parametrize("epoch", [-1, 1 << 31])
def test_an_epoch_that_no_batch_can_carry_is_refused(epoch: int) -> None:
    log = grown(DictStore(), 3)
    with pytest.raises(InvalidInput, match="does not fit"):
        log.commit([Claim(epoch=Epoch(epoch), broker_id="a")], epoch=Epoch(epoch))


def test_a_missing_commit_is_told_and_the_log_does_not_start_again_l2() -> None:
    store = DictStore()
    grown(store, 28)
    del store.files[commit_name(24)]
    with pytest.raises(CorruptLog, match="commit 24 is missing"):
        opened(store)


def test_a_commit_under_the_wrong_name_is_told() -> None:
    store = DictStore()
    grown(store, 8)
    store.files[commit_name(7)] = store.files[commit_name(6)]
    with pytest.raises(CorruptCommit, match="version 6"):
        opened(store)


def test_of_two_writers_one_wins_and_the_other_sees_what_won_l3() -> None:
    store = DictStore()
    grown(store, 3)
    one, two = opened(store, "one"), opened(store, "two")
    won = one.commit([], epoch=one.state.epoch)
    with pytest.raises(VersionConflict) as conflict:
        two.commit([], epoch=two.state.epoch)
    assert (conflict.value.expected, conflict.value.current) == (2, 3)
    assert json.loads(store.files[commit_name(3)])["txn_id"] == won.txn_id
    assert two.state == one.state
    assert two.commit([], epoch=two.state.epoch).version == 4


def test_an_expected_version_that_is_past_is_a_conflict_l3() -> None:
    log = grown(DictStore(), 3)
    with pytest.raises(VersionConflict, match="expected version 1"):
        log.commit([], epoch=log.state.epoch, expected_version=Version(1))


def test_a_fenced_writer_writes_nothing() -> None:
    store = DictStore()
    grown(store, 3)
    zombie, owner = opened(store), opened(store)
    owner.commit([Claim(epoch=Epoch(9), broker_id="b")], epoch=Epoch(9))
    with pytest.raises(VersionConflict):
        zombie.commit([], epoch=Epoch(2))
    before = dict(store.files)
    with pytest.raises(StaleEpoch, match="epoch 2 is fenced by epoch 9"):
        zombie.commit([], epoch=Epoch(2))
    assert store.files == before


def test_versions_that_are_gone_say_which_are_there_l14() -> None:
    store = DictStore()
    log = grown(store, 50, keep=0)
    with pytest.raises(VersionNotRetained, match="versions 30 to 49 are"):
        log.entry(Version(3))
    assert [entry.version for entry in log.entries(Version(30), Version(33))] == [30, 31, 32]


def test_nobody_is_sent_to_a_version_that_is_just_being_removed_l12() -> None:
    """A refusal names the oldest version that stays when the clean-up which is under way has ended."""
    seen: list[VersionNotRetained] = []

    def look(step: Failpoint) -> None:
        if step == Failpoint.CLEANUP_COMMIT_REMOVED:
            with pytest.raises(VersionNotRetained) as gone:
                log.entry(Version(len(seen)))  # the one that was removed last
            seen.append(gone.value)

    log = CommitLog(DictStore(), clock=VirtualClock(), writer="a", failpoints=look)
    log.load()
    log.commit([Claim(epoch=Epoch(0), broker_id="a")], epoch=Epoch(0))
    go_on(log, 50)
    assert [gone.version for gone in seen] == list(range(40))
    assert [gone.oldest for gone in seen] == [10 * (1 + version // 10) for version in range(40)]


def test_a_clean_up_under_a_reader_makes_it_look_again() -> None:
    class Vanishing(DictStore):
        owner: CommitLog | None = None

        def get(self, name: str) -> bytes | None:
            if name == commit_name(22) and self.owner is not None:
                # Between our listing and our reading the owner has gone on, and cleaned up.
                owner, self.owner = self.owner, None
                go_on(owner, 22)
            return super().get(name)

    store = Vanishing()
    owner = grown(store, 25, keep=0)
    store.owner = owner
    assert opened(store).state == owner.state
    assert owner.state.version == 46


def go_on(log: CommitLog, versions: int) -> None:
    for _ in range(versions):
        log.commit([], epoch=log.state.epoch)
        if log.state.version % 10 == 0:
            log.write_checkpoint(log.take_checkpoint())
            log.clean_up(log.state.version)

"""Which txn_ids a log knows, for how long, and what a run of them is as a file."""

import random
from itertools import pairwise

import msgspec
import pytest
from crc32c import crc32c

from sulina.core.log.txn_memory import TxnLimits, TxnMemory
from sulina.core.log.txn_run import TxnRef, TxnRun, is_run_name
from sulina.errors import CorruptCommit
from sulina.types import Offset, Version

LIMITS = TxnLimits(seconds=900, txn_ids_max=640, run_txn_ids_max=4)  # runs of four
MINUTE_MS = 60_000


def txn(name: str, at: int = 0, *, version: int = 1, log_ms: int = 0, count: int = 1) -> TxnRef:
    return TxnRef(name, Offset(at), Offset(at + count), Version(version), log_ms)


def commit(memory: TxnMemory, txn: TxnRef, limits: TxnLimits = LIMITS) -> None:
    memory.remove_expired(txn.log_ms, limits)
    memory.remember(txn)
    memory.seal(limits)


def filled(count: int, *, every_ms: int = 0, limits: TxnLimits = LIMITS) -> TxnMemory:
    memory = TxnMemory()
    for number in range(count):
        commit(memory, txn(f"t{number}", number, version=number, log_ms=number * every_ms), limits)
    return memory


def test_a_txn_id_is_known_until_its_time_is_over_and_not_longer_l13() -> None:
    memory = filled(1)
    assert memory.find("t0", 900_000, LIMITS) == txn("t0", version=0)
    assert memory.find("t0", 900_001, LIMITS) is None
    assert memory.find("other", 0, LIMITS) is None
    assert TxnMemory().find("t0", 0, LIMITS) is None


def test_a_read_beside_a_run_that_is_forgotten_finds_nothing_l13() -> None:
    """L13: the number of a run is never another's, so who looks it up beside us is not led to the wrong one."""

    class Forgetting(dict[int, TxnRun]):
        """Forgets what is over just before a run is looked up by its number."""

        def get(self, number: int, default: TxnRun | None = None) -> TxnRun | None:  # type: ignore[override]
            memory.remove_expired(901_000, LIMITS)
            return super().get(number, default)

    memory = filled(1)
    memory.runs = Forgetting(memory.runs)
    assert memory.find("t0", 0, LIMITS) is None


def test_however_many_others_come_none_is_forgotten_before_its_time_l13() -> None:
    memory = filled(50_000, limits=TxnLimits())
    assert memory.count == 50_000
    assert memory.find("t0", 0, TxnLimits()) == txn("t0", version=0)
    assert memory.find("t49999", 0, TxnLimits()) == txn("t49999", 49_999, version=49_999)


def test_at_the_bound_there_is_no_room_until_the_oldest_run_is_over_l13() -> None:
    memory = filled(640, every_ms=1000)
    now_ms = 639_000
    assert not memory.has_room(0, now_ms, LIMITS)
    assert memory.find("t0", now_ms, LIMITS) is not None, "it is not forgotten for a new one"
    assert not memory.has_room(0, 902_999, LIMITS)
    assert not memory.has_room(0, 903_000, LIMITS), "the newest of the first run is of second 3"
    assert memory.has_room(3, 903_001, LIMITS), "the whole run counts no more"
    assert not memory.has_room(4, 903_001, LIMITS)


def test_those_who_wait_count_l13() -> None:
    memory = filled(600)
    assert memory.has_room(39, 0, LIMITS)
    assert not memory.has_room(40, 0, LIMITS)


def test_runs_that_are_over_go_and_make_room_l13() -> None:
    memory = filled(100, every_ms=MINUTE_MS)
    assert memory.count <= 15 + 1 + LIMITS.run_max
    known = [number for number in range(100) if memory.find(f"t{number}", 99 * MINUTE_MS, LIMITS)]
    assert known == [*range(84, 100)], "15 minutes back"


def test_what_is_forgotten_takes_no_memory_l13() -> None:
    memory = filled(1000, every_ms=MINUTE_MS)
    assert sum(map(len, memory.shards)) == memory.count <= 15 + 1 + LIMITS.run_max
    assert len(memory.runs) == len(memory.sealed) + 1


def test_a_run_that_is_over_before_it_is_full_goes_too_l13() -> None:
    memory = filled(2)
    assert memory.sealed == ()
    commit(memory, txn("new", 2, log_ms=900_001))
    assert memory.count == 1
    assert memory.newest == (txn("new", 2, log_ms=900_001),)
    assert memory.find("t0", 900_001, LIMITS) is None


@pytest.mark.parametrize("bound", [1, 3, 20])
def test_a_small_bound_gives_its_room_back_too_l13(bound: int) -> None:
    limits = TxnLimits(seconds=10, txn_ids_max=bound)
    memory = TxnMemory()
    for number in range(bound):
        assert memory.has_room(0, 0, limits)
        commit(memory, txn(f"t{number}", number), limits)
    assert not memory.has_room(0, 10_000, limits)
    assert memory.has_room(0, 10_001, limits)
    commit(memory, txn("new", log_ms=10_001), limits)
    assert memory.count == 1


def test_a_txn_id_that_comes_again_after_its_time_is_what_it_wrote_last_l13() -> None:
    memory = filled(8)
    memory.remember(txn("t0", 99, version=9, log_ms=900_001))
    assert memory.find("t0", 900_001, LIMITS) == txn("t0", 99, version=9, log_ms=900_001)
    memory.remove_expired(900_001, LIMITS)
    assert memory.find("t0", 900_001, LIMITS) == txn("t0", 99, version=9, log_ms=900_001)
    assert memory.find("t1", 900_001, LIMITS) is None
    assert memory.count == 1


def test_adds_of_one_commit_are_one_txn_l13() -> None:
    memory = TxnMemory()
    memory.remember(txn("a", 0, count=2))
    memory.remember(txn("a", 2, count=3))
    assert memory.newest == (txn("a", 0, count=5),)
    assert memory.count == 1


def test_a_memory_comes_back_from_its_runs_and_its_newest_l13() -> None:
    memory = filled(41)
    runs = [TxnRun.referred(msgspec.json.decode(msgspec.json.encode(run.reference()))) for run in memory.sealed]
    for run, stored in zip(runs, memory.sealed, strict=True):
        run.load(stored.encode())
    again = TxnMemory(runs, memory.newest)
    assert again == memory
    assert again.count == 41
    assert [again.find(f"t{number}", 0, LIMITS) for number in range(41)] == [
        txn(f"t{number}", number, version=number) for number in range(41)
    ]


def test_runs_follow_one_another_and_never_change_l13() -> None:
    memory = filled(20)
    before = [(run.name, run.encode()) for run in memory.sealed]
    commit(memory, txn("more", 20, version=20))
    assert [(run.name, run.encode()) for run in memory.sealed] == before
    names = [name for name, _ in before]
    assert len(names) == 5
    assert all(name is not None and is_run_name(name) for name in names)
    assert all(first < second for first, second in pairwise(map(str, names)))


def run_of(count: int) -> TxnRun:
    run = TxnRun()
    for number in range(count):
        run.add(txn(f"t{number}", number, version=number))
    run.seal()
    return run


def test_runs_are_equal_when_they_hold_the_same() -> None:
    assert run_of(3) == run_of(3)
    assert run_of(3) != run_of(4)
    growing, other = TxnRun(), TxnRun()
    assert growing == other
    growing.add(txn("a"))
    other.add(txn("b"))
    assert growing != other, "as many, of the same time"
    sealed = run_of(1)
    assert TxnRun.referred(sealed.reference()) == sealed, "a name says what is in the file"


def test_a_run_with_one_bit_changed_is_damage_l11() -> None:
    run = run_of(5)
    data = run.encode()
    for seed in range(50):
        at = random.Random(seed).randrange(len(data) * 8)
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptCommit, match=r"\.txns .*checksum"):
            TxnRun.referred(run.reference()).load(bytes(flipped))


def test_a_run_that_holds_another_number_than_was_said_is_damage_l11() -> None:
    run = run_of(5)
    with pytest.raises(CorruptCommit, match=r"\.txns .*does not hold 6 txn_ids"):
        TxnRun.referred((run.name, 6, 0)).load(run.encode())


@pytest.mark.parametrize("versions", [["x"], [2**63], None])
def test_a_run_whose_checksum_holds_over_fields_that_cannot_be_is_damage_l11(versions: object) -> None:
    columns = {"txn_ids": ["a"], "offset_starts": [0], "offset_ends": [1], "versions": versions, "log_ms": [0]}
    data = msgspec.json.encode(columns)
    name = f"{0:020d}-{0:020d}-{crc32c(data):08x}.txns"
    with pytest.raises(CorruptCommit, match=f"{name}.*its fields do not"):
        TxnRun.referred((name, 1, 0)).load(data)


@pytest.mark.parametrize(
    "reference",
    [
        ["../../etc/passwd", 1, 0],
        [f"{0:020d}-{1:020d}-0000000g.txns", 1, 0],
        [f"{0:020d}-{1:020d}-00000000.json", 1, 0],
        [f"{0:020d}-{1:019d}/-00000000.txns", 1, 0],
        [f"{0:020d}-{1:020d}-00000000.txns", 0, 0],
        [1, 1, 0],
        "text",
    ],
)
def test_what_names_no_run_is_refused_l11(reference: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        TxnRun.referred(reference)

"""Bits that flip at rest: every one is detected or repaired, and never served (L8)."""

import random
from collections import Counter

import pytest

import sulina.core.log.stored
from sulina.errors import Corrupt, InvalidBatch
from sulina.testing.files import SimulatedFiles
from tests.support.crash_world import DIRECTORY, PADDING_BYTES, World
from tests.support.ledger import Ledger, records_in

FLIPS_A_KIND = 700


def kind_of(path: str) -> str:
    name = path.rpartition("/")[2]
    return "checkpoint" if "checkpoint" in name else "commit" if name.endswith(".json") else name.rpartition(".")[2]


def flipped(world: World, path: str, bit: int) -> str:
    """Flip one bit of a log at rest, then read all of it: what became of it."""
    files: SimulatedFiles = world.files.kill()
    files.flip_bit(path, bit)
    try:
        log = world.opened(files)
    except Corrupt:
        return "detected"
    ledger, detected = world.promises.ledger, False
    for number, appended in ledger.acked.items():
        if appended.offset_end <= log.view.start_offset:
            continue
        try:
            found = log.read(appended.offset_start, 1)
        except Corrupt:
            detected = True
            continue
        alone = Ledger({number}, {number: appended}, PADDING_BYTES)
        try:
            wrong = alone.violations(records_in(found.data), appended.offset_start)
        except InvalidBatch as error:
            wrong = [str(error)]
        if wrong:
            return "served wrong"
    log.close()
    return "detected" if detected else "harmless or repaired"


def flip_many(seed: int, kind: str) -> Counter[str]:
    world = World(seed)
    world.run()
    rng = random.Random(seed)
    sizes = {path: world.files.size(path) for path in world.files.paths() if kind_of(path) == kind}
    if kind == "log":
        # A recycled file is longer than what it holds, and a spare one holds nothing.
        segments = world.opened(world.files.kill()).view.segments
        sizes = {f"{DIRECTORY}/{segment.name}": segment.size for segment in segments}
    results: Counter[str] = Counter()
    for _ in range(FLIPS_A_KIND):
        path = rng.choice([path for path, size in sizes.items() if size])
        results[flipped(world, path, rng.randrange(8 * sizes[path]))] += 1
    return results


@pytest.mark.parametrize("kind", ["log", "index", "commit", "checkpoint"])
def test_a_flipped_bit_is_detected_or_repaired_and_never_served_l8(kind: str) -> None:
    results = flip_many(11, kind)
    assert results["served wrong"] == 0
    if kind == "log":
        assert results["detected"] == FLIPS_A_KIND
    if kind in ("index", "checkpoint"):
        assert results["harmless or repaired"] == FLIPS_A_KIND


class EqualToAll:
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __format__(self, _: str) -> str:
        return "?"

    __hash__ = None  # type: ignore[assignment]


def test_the_run_sees_a_missing_checksum_l8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sulina.core.log.stored, "crc32c", lambda *_, **__: EqualToAll())
    assert flip_many(11, "log")["served wrong"] > 0

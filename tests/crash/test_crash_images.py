"""Power cuts: thousands of disks as a crash may leave them, and proof that the run would see a missing protection.

`SULINA_CRASH_IMAGES=100000 make test` runs more of them.
"""

import os
import random

import pytest

from sulina.core.log.log_state import Appended
from sulina.errors import LogStopped
from sulina.storage.commit_store import DirectoryCommits
from sulina.testing.files import SimulatedFiles
from tests.support.crash_world import PADDING_BYTES, Prepare, World, broken_promises, crash_images
from tests.support.ledger import append_of

IMAGES = int(os.environ.get("SULINA_CRASH_IMAGES", "1560"))
SHARDS = 8
IMAGES_A_CRASH = 13
MUTATION_CRASHES_MAX = 400


def run(seeds: range, prepare: Prepare | None = None) -> tuple[int, list[str]]:
    """How many images were looked at, and what is wrong; stops at the first that is."""
    looked = 0
    for seed in seeds:
        for number, (files, promises) in enumerate(crash_images(seed, IMAGES_A_CRASH, prepare)):
            looked += 1
            wrong = broken_promises(files, promises, seed)
            if wrong:
                return looked, [f"seed {seed}, image {number}: {text}" for text in wrong]
    return looked, []


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_crash_breaks_a_promise_l1_l2_l4_l5_l7_l8_l13(shard: int) -> None:
    crashes = IMAGES // IMAGES_A_CRASH // SHARDS
    looked, wrong = run(range(shard * crashes, (shard + 1) * crashes))
    assert not wrong, "\n".join(wrong)
    assert looked == crashes * IMAGES_A_CRASH


# The run must be able to fail: without any one of the protections it does.


def without_data_sync(files: SimulatedFiles) -> None:
    files.drop_syncs(lambda path: path.endswith(".log"), directories=False)


def without_commit_sync(files: SimulatedFiles) -> None:
    files.drop_syncs(lambda path: "_delta_log" in path, directories=False)


def without_directory_sync(files: SimulatedFiles) -> None:
    files.drop_syncs(lambda _: True, files=False)


def with_rename_for_link(files: SimulatedFiles) -> None:
    files.link = files.rename  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "reverted", [without_data_sync, without_commit_sync, without_directory_sync, with_rename_for_link]
)
def test_the_run_sees_a_missing_protection_l4_l5(reverted: Prepare) -> None:
    looked, wrong = run(range(MUTATION_CRASHES_MAX), reverted)
    assert wrong, f"{looked} images looked right"


def test_the_run_sees_a_commit_that_is_believed_too_early_l5(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies after the link and before the sync leaves a commit that a power cut can take back."""
    monkeypatch.setattr(DirectoryCommits, "restate", lambda *_: None)
    looked, wrong = run(range(MUTATION_CRASHES_MAX))
    assert wrong, f"{looked} images looked right"


def test_a_failed_directory_sync_is_not_retried_as_if_it_could_succeed_l9() -> None:
    """The next sync of the directory succeeds and does nothing; only a new name is durable again."""
    for seed in range(20):
        world = World(seed)
        log = world.opened(world.files)
        for _ in range(5):
            world.append(log)
        number = 77_777
        world.files.fail_sync(lambda path: path.endswith("_delta_log"))
        again = append_of(number, txn_id="again", padding_bytes=PADDING_BYTES)
        assert isinstance(log.append([again])[0], LogStopped)
        log.close()
        log = world.opened(world.files)
        ledger = world.promises.ledger
        ledger.sent |= {number}
        (answer,) = log.append([again])
        assert isinstance(answer, Appended)
        ledger.acked[number] = answer
        world.append(log)
        assert broken_promises(world.files.crash(random.Random(seed)), world.promises, seed) == []


def test_the_same_seed_gives_the_same_image() -> None:
    one, two = ([*crash_images(5, 4)][3][0] for _ in range(2))
    assert contents_of(one) == contents_of(two)


def contents_of(files: SimulatedFiles) -> dict[str, bytes]:
    # The names of files written aside are unlike all others in the process.
    return {path: files.read(path) for path in files.paths() if not path.endswith(".aside")}


def test_an_image_after_an_image_is_fine_too_l7() -> None:
    rng = random.Random(7)
    for files, promises in crash_images(3, 5):
        once_more = files.crash(rng)
        assert broken_promises(once_more, promises, 3) == []

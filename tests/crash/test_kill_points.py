"""L7: SIGKILL at every named step, and at random moments; what is left recovers to the last commit.

`SULINA_KILLS=200 pytest tests/crash/test_kill_points.py` is the long form: every occurrence of every step, and 200
random kills.
"""

import itertools
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sulina.failpoints import LOG_FAILPOINTS, Failpoint
from sulina.types import Offset
from tests.support.children import (
    TIMEOUT_SECONDS,
    Report,
    append,
    check,
    check_files,
    check_recovery,
    end,
    numbers_in,
    opened,
    run_child,
    start_child,
)

LONG_KILLS = int(os.environ.get("SULINA_KILLS", "0"))
RANDOM_KILLS = LONG_KILLS or 12
SEED = int(os.environ.get("SULINA_SEED", "7"))
GROWN_VERSION = 93  # so that the children pass version 100, whose checkpoint has a hint


@dataclass(frozen=True, slots=True)
class Scene:
    """A directory to start from, what was told about it, and how often its child then reaches each step."""

    directory: Path | None  # None: there is none yet
    report: Report
    counts: dict[Failpoint, int]

    def run(self, directory: Path, kill: tuple[Failpoint, int] | None = None) -> tuple[Report, int, str]:
        """Let a child work in a copy of this scene."""
        if self.directory is not None:
            shutil.copytree(self.directory, directory)
        report = self.report.copy()
        first = max(report.ledger.sent, default=-1) + 1
        code, error = run_child("every_step", directory, report, first=first, kill=kill)
        return report, code, error


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    """An empty place, and a grown log whose writer was killed in the middle of an append."""
    home = tmp_path_factory.mktemp("scenes")
    report = Report()
    with opened(home / "torn") as log:
        while log.view.version < GROWN_VERSION:
            append(log, report, (len(report.appends),))
    code, error = run_child("torn", home / "torn", report, first=len(report.appends))
    assert code == -signal.SIGKILL, error
    return [
        counted(Scene(None, Report(), {}), home / "empty-counted"),
        counted(Scene(home / "torn", report, {}), home / "torn-counted"),
    ]


def counted(scene: Scene, directory: Path) -> Scene:
    report, code, error = scene.run(directory)
    assert code == 0, error
    assert report.conflicts == 3  # the child lost to its rival, retried, and won (L3)
    done = report.event("done")
    assert done is not None
    check_recovery(directory, report)
    return Scene(scene.directory, scene.report, {Failpoint(step): count for step, count in done[0].items()})


def kill_points(scenes: list[Scene], step: Failpoint) -> list[tuple[Scene, int]]:
    """The first occurrence of a step in a new log, and a later one in a log that has grown; or all of them."""
    reached = [(scene, scene.counts[step]) for scene in scenes if step in scene.counts]
    if LONG_KILLS:
        return [(scene, nth) for scene, count in reached for nth in range(1, count + 1)]
    if not reached:
        return []
    (first, _), (last, count) = reached[0], reached[-1]
    return [(first, 1)] if first is last and count == 1 else [(first, 1), (last, count // 2 + 1)]


@pytest.mark.timeout(600 if LONG_KILLS else 120)
@pytest.mark.parametrize("step", LOG_FAILPOINTS, ids=str)
def test_l7_a_process_killed_at_this_step_leaves_a_log_that_goes_on_from_its_last_commit(
    step: Failpoint, scenes: list[Scene], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """L2, L5, L6, L8, L13 too: no acked batch lost, none torn, none twice, no gap; retries get one answer."""
    points = kill_points(scenes, step)
    assert points, f"no child reaches {step}: give `every_step` in child.py, or a scene, something that does"
    for number, (scene, nth) in enumerate(points):
        directory = tmp_path / str(number)
        report, code, error = scene.run(directory, (step, nth))
        assert code == -signal.SIGKILL, error
        assert report.event("killed") == [step, nth]
        check_recovery(directory, report)
    record_property("kill_point", str(step))


def test_l7_every_step_of_the_log_is_a_kill_point(scenes: list[Scene]) -> None:
    reached = {step for scene in scenes for step in scene.counts}
    assert reached == set(LOG_FAILPOINTS), "not reached by any child"
    assert any(len(kill_points(scenes, step)) > 1 for step in LOG_FAILPOINTS)


@pytest.mark.timeout(60 + 5 * RANDOM_KILLS)
def test_l13_killed_at_random_under_load_every_txn_id_is_there_exactly_once(tmp_path: Path) -> None:
    """L7, L17: group commits, retention and checkpoints run beside each other when the process dies, each time."""
    rng = random.Random(SEED)
    report = Report()
    seen: dict[int, Offset] = {}  # where each batch was, whenever it was
    directory = tmp_path / "log"
    for round_ in range(RANDOM_KILLS):
        killed_after(rng.uniform(0, 0.4), directory, report)
        with opened(directory) as log:
            check(log, report)
            check_files(log)
            for number, offset in numbers_in(log).items():
                assert seen.setdefault(number, offset) == offset, f"seed {SEED}, round {round_}: {number} twice"
        for number, appended in report.ledger.acked.items():
            assert seen.setdefault(number, appended.offset_start) == appended.offset_start
    ranges = sorted((appended.offset_start, appended.offset_end) for appended in report.ledger.acked.values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
    assert len({appended.version for appended in report.ledger.acked.values()}) < len(report.appends)  # L17
    check_recovery(directory, report)


def killed_after(seconds: float, directory: Path, report: Report) -> None:
    """Start a writer that first retries what has no answer yet, and kill it while it works."""
    first = max(report.ledger.sent, default=-1) + 1
    process = start_child("under_load", directory, first=first, retry=report.in_flight)
    assert process.stdout is not None
    assert process.stderr is not None
    alarm = threading.Timer(TIMEOUT_SECONDS, process.kill)
    alarm.start()
    try:
        assert process.stdout.readline() == '["begun"]\n', process.stderr.read()
        killer = threading.Timer(seconds, process.kill)  # at any moment: that is the fault
        killer.start()
        for line in process.stdout:
            report.read(line)
        killer.join()
        assert process.wait(TIMEOUT_SECONDS) == -signal.SIGKILL, process.stderr.read()
    finally:
        alarm.cancel()
        end(process)

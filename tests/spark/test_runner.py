"""Spark gives a Python process ten seconds to start. What a runner does about it, without the seconds."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sulina.spark.errors import PipelineFailed
from sulina.spark.pipeline.definition import Pipeline, parse
from sulina.spark.pipeline.runner import STARTS_MAX, Runner
from sulina.spark.pipeline.stages import Stages
from sulina.spark.table_location import TableLocation

LATE = "[SPARK] Timed out while waiting for the Python worker to connect back"


@dataclass(frozen=True)
class Ended:
    """A query that is over."""

    error: Exception | None
    isActive: bool = False  # noqa: N815 - as Spark has it
    recentProgress: tuple[Any, ...] = ()  # noqa: N815

    def exception(self) -> Exception | None:
        return self.error


@dataclass
class Starts:
    """The stages of a pipeline, of which only a start is noted; `ends` says how each query ends."""

    ends: list[str | None]
    pipeline: Pipeline = field(
        default_factory=lambda: parse(
            {"name": "shop", "url": "http://127.0.0.1:1", "tables": "t", "bronze": [{"table": "raw", "topic": "/a/b"}]}
        )
    )
    started: list[tuple[str, bool]] = field(default_factory=list)

    def prepare(self) -> None:
        pass

    def location(self, table: str) -> TableLocation:
        return TableLocation.parse(f"/nonexistent/{table}")

    def start(self, one: Any, *, is_once: bool) -> Ended:
        self.started.append((one.table, is_once))
        end = self.ends.pop(0)
        return Ended(None if end is None else RuntimeError(end))


def run(stages: Starts) -> Runner:
    runner = Runner(cast("Stages", stages))
    runner.run_once()
    return runner


def test_s3_a_query_whose_python_process_was_late_is_started_again() -> None:
    stages = Starts([LATE, "Python worker failed to connect back.", None])
    runner = run(stages)
    assert stages.started == [("raw", True)] * 3
    assert [one.state for one in runner.progress] == ["done"]


@pytest.mark.parametrize("ends", [[LATE] * (STARTS_MAX + 1), ["java.io.IOException: disk full", None]])
def test_s3_one_that_is_always_late_or_fails_otherwise_ends_the_run(ends: list[str | None]) -> None:
    stages = Starts(list(ends))
    with pytest.raises(PipelineFailed):
        run(stages)
    assert len(stages.started) == (STARTS_MAX if ends[0] == LATE else 1)


SAID = ["Initializing sources", "Getting offsets from x", "Processing new data", "Waiting for next trigger", "Stopped"]


@dataclass
class Active:
    """A query that is under way, and ends when Spark has said everything."""

    left: list[str] = field(default_factory=lambda: list(SAID))
    recentProgress: tuple[Any, ...] = ()  # noqa: N815

    @property
    def isActive(self) -> bool:  # noqa: N802
        return bool(self.left)

    @property
    def status(self) -> dict[str, str]:
        return {"message": self.left.pop(0)}

    def awaitTermination(self, _seconds: int) -> None:  # noqa: N802
        pass

    def exception(self) -> None:
        return None


class Planned(Starts):
    """The stages of a pipeline with one query, whose batch ends at an offset."""

    def start(self, one: Any, *, is_once: bool) -> Any:
        return Active()

    def checkpoint(self, _table: str) -> Any:
        return SimpleNamespace(newest_end=lambda: {"/a/b": {"0": "1002@1"}})


def test_what_a_table_waits_for_is_told() -> None:
    doing: list[str | None] = []
    runner = Runner(cast("Stages", Planned([])), tell=lambda progress: doing.append(progress[0].doing))
    runner.run_once()
    assert list(dict.fromkeys(doing)) == [
        "starting its query",
        "planning: looking what is new in /a/b",
        "reading /a/b up to offset 1,002, writing raw",
        "waiting for new records",
        None,
    ]


def unreadable() -> None:
    raise OSError("the object store does not answer")


class Unreadable(Planned):
    """The same, with a checkpoint that cannot be read now."""

    def checkpoint(self, _table: str) -> Any:
        return SimpleNamespace(newest_end=unreadable)


def test_s3_a_run_goes_on_if_where_its_batch_ends_cannot_be_read() -> None:
    doing: list[str | None] = []
    runner = Runner(cast("Stages", Unreadable([])), tell=lambda progress: doing.append(progress[0].doing))
    runner.run_once()
    assert "reading /a/b, writing raw" in doing
    assert [one.state for one in runner.progress] == ["done"]

"""Spark gives a Python process ten seconds to start. What a runner does about it, without the seconds."""

from dataclasses import dataclass, field
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

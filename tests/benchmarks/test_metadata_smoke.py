"""The benchmark of what is written into etcd still runs, as small as it can be. Nothing is timed."""

import os
from pathlib import Path

import pytest

from benchmarks import metadata as benchmark
from benchmarks.measure import Setup
from tests.support import needs

pytestmark = pytest.mark.skipif(not os.environ.get("SULINA_SLOW"), reason="takes half a minute: make examples")


class Tiny(Setup):
    """Less than quick."""

    def choose(self, quick: int, full: int) -> int:
        return min(1, quick) if quick < 100 else quick


def test_claims_about_etcd_yield_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs.require("etcd")
    monkeypatch.setattr(benchmark, "CROWDS", (1,))
    results = {result.name: result for result in benchmark.benchmark(Tiny(str(tmp_path), True))}
    assert all(result.value >= 0 for result in results.values())
    assert any("with compaction" in name and result.met for name, result in results.items())

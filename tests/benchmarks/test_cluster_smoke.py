"""The benchmark of clusters still runs, as small as it can be. Nothing is timed.

Moves and failovers are left to the tests of clusters, which do the same.
"""

import os
from pathlib import Path

import pytest

from benchmarks import cluster as benchmark
from benchmarks.measure import Setup
from tests.support.etcd import EtcdServer, etcd
from tests.support.s3 import S3Server, s3

__all__ = ["etcd", "s3"]  # fixtures

pytestmark = pytest.mark.skipif(not os.environ.get("SULINA_SLOW"), reason="takes half a minute: make examples")


class Tiny(Setup):
    """Less than quick."""

    def choose(self, quick: int, full: int) -> int:
        return 1


async def test_claims_about_clusters_yield_figures(
    tmp_path: Path, etcd: EtcdServer, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "CROWDS_QUICK", (6,))
    setup = Tiny(str(tmp_path), True)
    for number, claim in enumerate((benchmark.crowd, benchmark.throughput)):
        results = await benchmark.measured(setup, benchmark.home_of(tmp_path, str(number)), etcd, s3, claim)
        assert results
        assert all(result.value >= 0 for result in results)  # in a second, a busy machine may do nothing at all

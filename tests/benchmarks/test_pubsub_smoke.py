"""The benchmark of publish/subscribe still runs: its clients, its peers and its claims, as small as can be. Nothing is
timed, and a peer that is not on this machine is left out.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import pubsub as benchmark
from benchmarks.measure import Result, Setup
from benchmarks.serving.fan_out import COUNT, SLOTS
from benchmarks.serving.processes import load, sulina_server

pytestmark = pytest.mark.skipif(not os.environ.get("SULINA_SLOW"), reason="takes half a minute: make examples")


class Tiny(Setup):
    """Less than quick."""

    def choose(self, quick: int, full: int) -> int:
        return 1


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[benchmark.Clients]:
    progress = tmp_path / "progress"
    progress.write_bytes(bytes(SLOTS * COUNT.size))
    with load("fan_out") as publisher, load("fan_out") as one, load("fan_out") as other:
        yield benchmark.Clients(publisher, [one, other], str(progress))


def names(results: Iterator[Result]) -> list[str]:
    found = list(results)
    assert all(result.value >= 0 for result in found)
    return [result.name for result in found]


@pytest.mark.parametrize("nodes", [1, 3])
def test_every_peer_that_is_here_delivers_everything(nodes: int, clients: benchmark.Clients) -> None:
    with benchmark.peers(nodes) as peers:
        if not peers:
            pytest.skip("there is neither NATS nor Redis: run `tools/install_peers.sh .venv`")
        for peer in peers:
            for batch in benchmark.BATCHES:
                run = benchmark.deliver(clients, peer, 5, batch, 2 * batch)
                assert run.missing == 0
                assert sum(each["deliveries"] for each in run.taken) == 5 * 2 * batch


def test_claims_about_publish_subscribe_yield_figures(tmp_path: Path, clients: benchmark.Clients) -> None:
    setup = Tiny(str(tmp_path), True)
    with sulina_server(str(tmp_path / "node")) as node:
        ours = benchmark.sulinas([node.url])
        assert names(benchmark.throughput(setup, clients, ours, 3, 1))
        assert names(benchmark.throughput(setup, clients, ours, 4, 100, is_shared=True))
        assert names(benchmark.latency(setup, clients, ours, 2, 20.0))
        assert names(benchmark.dead_subscriber(setup, clients, ours[0]))


def test_a_peer_that_is_missing_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with ExitStack() as stack:
        assert stack.enter_context(benchmark.peers(1)) == []
    said = capsys.readouterr().err
    assert "there is no nats-server: run `tools/install_peers.sh .venv`; NATS is not measured" in said
    assert "there is no redis-server: run `tools/install_peers.sh .venv`; Redis is not measured" in said

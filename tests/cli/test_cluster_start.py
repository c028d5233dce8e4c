"""`sulina cluster start`, and every command about a cluster, against real processes, a real etcd and real files.

The tests of this module follow each other: a cluster is started, used, loses a broker, and is started again.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SECONDS_MAX, Ended, command, environment, told
from tests.support import needs

LEASE_SECONDS = 6  # the machine may stand still for a second or two, and no broker is taken for dead for it
RECORDS = 300


@dataclass(slots=True)
class Started:
    """A cluster, and commands against it."""

    process: subprocess.Popen[bytes]
    facts: dict[str, Any]

    def url(self, broker: str) -> str:
        return str(self._broker(broker)["url"])

    def pid(self, broker: str) -> int:
        return int(self._broker(broker)["pid"])

    def pids(self) -> list[int]:
        return [self.facts["etcd"]["pid"], *(broker["pid"] for broker in self.facts["brokers"])]

    def _broker(self, name: str) -> dict[str, Any]:
        return next(broker for broker in self.facts["brokers"] if broker["broker_id"] == name)


class Asking:
    """Commands against a cluster."""

    def __init__(self, cluster: Started, capfd: pytest.CaptureFixture[str]) -> None:
        self._cluster, self._capfd = cluster, capfd

    def run(self, *words: str, at: str = "b1") -> Ended:
        return told(self._capfd, *words, "--url", self._cluster.url(at))

    def ok(self, *words: str, at: str = "b1") -> Any:
        done = self.run(*words, "--json", at=at)
        assert done.code == 0, (words, done)
        return done.json

    def owners(self, topic: str) -> list[str | None]:
        return [place["broker_id"] for place in self.ok("topic", "lookup", topic)["partitions"]]

    def values(self, topic: str) -> list[str]:
        done = self.run("consume", topic, "--no-follow", "--json")
        assert done.code == 0, done
        return sorted(record["value"] for record in done.lines)


@contextlib.contextmanager
def starting(data: Path, *, brokers: int) -> Iterator[Started]:
    words = ["cluster", "start", "--data", str(data), "--brokers", str(brokers), "--port", "0", "--json"]
    with open(data.parent / f"{data.name}.err", "ab") as errors:
        process = subprocess.Popen(
            command(*words, "--lease-seconds", str(LEASE_SECONDS)),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(),
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (data.parent / f"{data.name}.err").read_text()
        yield Started(process, json.loads(line))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # once more: it kills what it has started
            process.wait(SECONDS_MAX)
        process.communicate()


def eventually(is_so: Callable[[], Any], what: str) -> None:
    """There is no event to wait for: ask until it is so."""
    until = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < until, what


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs.require("etcd")
    return tmp_path_factory.mktemp("cluster") / "data"


@pytest.fixture(scope="module")
def cluster(data: Path) -> Iterator[Started]:
    with starting(data, brokers=3) as started:
        yield started


@pytest.fixture
def asking(cluster: Started, capfd: pytest.CaptureFixture[str]) -> Asking:
    return Asking(cluster, capfd)


def test_a_topic_is_created_looked_up_moved_and_drained_f5(asking: Asking, tmp_path: Path) -> None:
    """F5, F7, U6: through every broker, by every command; nothing is lost, no offset is given twice."""
    assert [info["state"] for info in asking.ok("broker", "list", at="b3")] == ["active"] * 3
    asking.ok("topic", "create", "orders", "--partitions", "3", "--ack", "archived", at="b2")
    assert set(asking.owners("orders")) == {"b1", "b2", "b3"}
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number:05}\n" for number in range(RECORDS)))
    assert asking.ok("produce", "orders", "--file", str(lines), at="b3")["records"] == RECORDS
    moves = asking.ok("topic", "move", "orders", "--to", "b3")
    assert {(move["to_broker"], move["step"]) for move in moves} == {("b3", "moved")}
    assert len(moves) == 2
    assert all(next(iter(move["seconds"])) == "requested" for move in moves)
    assert asking.owners("orders") == ["b3"] * 3
    assert asking.ok("broker", "drain", "b3")["partitions"] == 0
    assert "b3" not in asking.owners("orders")
    assert asking.ok("broker", "activate", "b3")["state"] == "active"
    asking.ok("topic", "unload", "orders", "--partition", "0")
    assert "moves" in asking.ok("cluster", "rebalance")
    assert asking.values("orders") == lines.read_text().split()
    status = asking.ok("cluster", "status", at="b2")
    assert (status["partitions"], len(status["brokers"])) == (3, 3)


def test_a_mistake_is_one_line_with_what_was_meant(asking: Asking) -> None:
    done = asking.run("topic", "move", "orders", "--to", "b33")
    assert (done.code, "did you mean b3?" in done.err, done.err.count("\n")) == (1, True, 1)
    assert "did you mean" in asking.run("broker", "drain", "b11").err


def test_records_of_a_lost_broker_are_given_up_only_when_that_is_said_f4(asking: Asking, cluster: Started) -> None:
    """F1, F4: what is archived fails over by itself; what only a lost broker has waits, and is shown before it goes."""
    asking.ok("topic", "create", "slow", "--ack", "local", "--archive-seconds", "3600")
    asking.ok("topic", "move", "slow", "--to", "b3")
    asking.ok("topic", "move", "orders", "--to", "b3")
    asking.ok("produce", "slow", "--count", "7")
    os.kill(cluster.pid("b3"), signal.SIGKILL)
    eventually(lambda: None not in asking.owners("orders") and "b3" not in asking.owners("orders"), "no failover")
    assert len(asking.values("orders")) == RECORDS
    [place] = asking.ok("topic", "lookup", "slow")["partitions"]
    assert (place["state"], place["waits_for"]) == ("recovering", "b3")
    assert asking.ok("cluster", "status")["recovering"] == 1
    refused = asking.run("topic", "move", "slow", "--to", "b2", "--force", "--json")
    assert refused.code == 1
    assert "the records from offset 0 on" in refused.err
    assert "--yes" in refused.err
    [move] = asking.ok("topic", "move", "slow", "--to", "b2", "--force", "--yes")
    assert (move["step"], move["to_broker"], move["given_up"][0]) == ("moved", "b2", 0)
    assert asking.values("slow") == []


def test_all_is_stopped_in_order_and_there_again_the_next_time(
    cluster: Started, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """U8: started again with fewer brokers, the cluster has what it had."""
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(SECONDS_MAX) == 0, (data.parent / f"{data.name}.err").read_text()
    for pid in cluster.pids():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with starting(data, brokers=1) as started:
        again = Asking(started, capfd)
        eventually(lambda: None not in again.owners("orders"), "partitions without owners")
        assert len(again.values("orders")) == RECORDS
        again.ok("produce", "orders", "--count", "1")
        assert len(again.values("orders")) == RECORDS + 1

"""Commands about a cluster: what they ask for, what they show while it happens, and how they end."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from sulina.cli import terminal
from sulina.cli.broker import DrainProgress
from sulina.cli.terminal.moves import STEPS, MoveView
from sulina.client import move_watch
from sulina.errors import BrokerNotFound, InvalidSettings, SubscriptionBusy
from sulina.wire.messages import PartitionPlacement, Placement, Rebalanced, TopicState
from tests.cli.conftest import told
from tests.cli.fake_cluster import TOPIC, FakeCluster, a_broker, a_cluster, a_place, an_unload, playing


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with playing(monkeypatch) as fake:
        yield fake


def moves_away(cluster: FakeCluster, *, to: str = "b2") -> None:
    """Partition 0 goes the usual way, and partition 1 is at its goal already."""
    cluster.says("move_topic", [an_unload("requested")])
    cluster.says("moves", *([an_unload(step)] for step in ("quiesced", "paused", "sealed")), [])
    stays = a_place(to, 3, 1)
    still = [a_place("b1", 5), stays]
    cluster.says("placement", still, still, still, still, [a_place(None, 5), stays], [a_place(to, 6), stays])


# Look up


def test_who_serves_a_topic_is_shown_f5(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    """F5: look up the owner."""
    away = a_place(None, 4, 1, state=TopicState.RECOVERING, waits_for="b3")
    cluster.says("placement", [a_place("b1", 5), away])
    text = told(capfd, "topic", "lookup", "orders").out
    lines = [line.split() for line in text.splitlines()]
    assert lines[1] == ["0", "active", "b1", "http://b1:1", "5"]
    assert lines[2] == ["1", "recovering", "-", "-", "4", "b3"]
    assert told(capfd, "topic", "lookup", "orders", "--json").json["partitions"][1]["waits_for"] == "b3"


# Move and unload


def test_a_move_is_shown_step_by_step_until_it_is_served_there_f5(
    cluster: FakeCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """F5, U2: every step is seen, in its order, and the command ends when the new owner serves."""
    moves_away(cluster)
    done = told(capfd, "topic", "move", "orders", "--to", "b2", "--force", "--partition", "0", "--yes")
    assert done.code == 0
    assert cluster.changes() == [
        ("move_topic", TOPIC, ("force", True), ("give_up", False), ("partition", 0), ("to", "b2"))
    ]
    steps = [line.partition("partition 0: ")[2] for line in done.err.splitlines()]
    assert steps == ["requested", "quiesced", "paused", "sealed", "unassigned", "moved to b2"]
    assert done.out.splitlines()[1].split()[:4] == ["0", "b1", "b2", "moved"]


def test_a_move_as_json_is_one_document_with_the_time_of_each_step(
    cluster: FakeCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    moves_away(cluster)
    done = told(capfd, "topic", "move", "orders", "--to", "b2", "--json")
    [move] = done.json
    assert (done.code, done.err) == (0, "")
    assert (move["from_broker"], move["to_broker"], move["step"], move["error"]) == ("b1", "b2", "moved", None)
    assert list(move["seconds"]) == list(STEPS)
    assert sorted(move["seconds"].values()) == list(move["seconds"].values())


def test_a_move_without_a_target_goes_where_the_leader_chooses(
    cluster: FakeCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    moves_away(cluster, to="b7")
    assert told(capfd, "topic", "unload", "orders", "--json").json[0]["to_broker"] == "b7"
    assert cluster.changes() == [
        ("move_topic", TOPIC, ("force", False), ("give_up", False), ("partition", None), ("to", None))
    ]


def test_nobody_has_to_wait(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    moves_away(cluster)
    done = told(capfd, "topic", "move", "orders", "--to", "b2", "--no-wait", "--json")
    assert (done.code, done.json[0]["step"]) == (0, "requested")
    assert not [asked for asked in cluster.asked if asked[0] == "moves"]


def test_what_is_there_already_does_not_move(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.says("placement", [a_place("b2", 5)])
    cluster.says("move_topic", [])
    done = told(capfd, "topic", "move", "orders", "--to", "b2")
    assert (done.code, "nothing to move" in done.out) == (0, True)
    assert told(capfd, "topic", "move", "orders", "--to", "b2", "--json").json == []


def test_a_mistyped_broker_is_recognised(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.says("placement", [a_place("broker-1", 5)])
    cluster.says("move_topic", BrokerNotFound(broker="brokr-2", brokers="broker-1, broker-2"))
    done = told(capfd, "topic", "move", "orders", "--to", "brokr-2")
    assert (done.code, done.out) == (1, "")
    assert "choose one of broker-1, broker-2" in done.err
    assert "did you mean broker-2?" in done.err
    assert done.err.count("\n") == 1
    cluster.says("drain_broker", BrokerNotFound(broker="broker2", brokers="broker-1, broker-2"))
    assert "did you mean" in told(capfd, "broker", "drain", "broker2", "--json").error["hint"]


def test_a_node_that_is_alone_says_so_itself(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.says("placement", [a_place("local", -1, url=None)])
    cluster.says("move_topic", InvalidSettings("this node is not part of a cluster: start it with --metadata etcd://…"))
    assert "not part of a cluster" in told(capfd, "topic", "move", "orders", "--to", "b2").err


def test_consumers_in_the_way_are_said_with_what_to_do_u3(
    cluster: FakeCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """U3: with active consumers and without force it fails with a clear error."""
    cluster.says("placement", [a_place("b1", 5)])
    cluster.says("move_topic", SubscriptionBusy(topic=TOPIC, subscription="s", reason="1 consumer is attached"))
    done = told(capfd, "topic", "move", "orders", "--to", "b2", "--json")
    assert (done.code, done.error["code"], "--force" in done.error["hint"]) == (1, "subscription_busy", True)


def test_an_owner_that_keeps_its_partition_is_a_failure(
    cluster: FakeCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_watch, "LATE_SECONDS", 0.0)
    moves_away(cluster)
    cluster.says("moves", [an_unload("requested")], [])
    cluster.says("placement", [a_place("b1", 5)])
    done = told(capfd, "topic", "move", "orders", "--to", "b2", "--json")
    assert (done.code, done.json[0]["step"]) == (1, "refused")
    assert "b1 keeps it" in done.json[0]["error"]


def test_an_owner_that_dies_on_the_way_is_a_failure_that_names_it(
    cluster: FakeCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    moves_away(cluster)
    cluster.says("moves", [an_unload("quiesced")], [an_unload("recovering", given_up=(3, 9))])
    cluster.says("placement", [a_place("b1", 5)], [a_place("b1", 5)], [a_place(None, 5, state=TopicState.RECOVERING)])
    done = told(capfd, "topic", "move", "orders", "--to", "b2")
    assert done.code == 1
    assert "broker b1 died" in done.out
    assert "[3, 9), 6 records" in done.out


def test_an_attempt_that_failed_is_told_and_watched_on(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    moves_away(cluster)
    failed = an_unload("requested", error="the archive cannot be reached")
    cluster.says("moves", [an_unload("quiesced")], [failed], [an_unload("sealed")], [])
    done = told(capfd, "topic", "move", "orders", "--to", "b2")
    assert "requested: the archive cannot be reached" in done.err
    assert done.code == 0


# What is given up for good


def is_recovering(cluster: FakeCluster) -> None:
    cluster.says("moves", [an_unload("recovering", given_up=(17, 40))])
    cluster.says("move_topic", [an_unload("unassigned", given_up=(17, 40))])
    cluster.says("placement", [a_place(None, 5, state=TopicState.RECOVERING, waits_for="b1")], [a_place("b2", 6)])


def test_records_are_not_given_up_where_nobody_is_asked(
    cluster: FakeCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    is_recovering(cluster)
    done = told(capfd, "topic", "move", "orders", "--to", "b2", "--force", "--json")
    assert (done.code, done.error["code"]) == (1, "invalid_input")
    assert "--yes" in done.error["hint"]
    assert "the records from offset 17 on. Its last report: [17, 40), 23 records" in done.error["message"]
    assert done.err.count("\n") == 1
    assert cluster.changes() == []


def test_records_are_given_up_when_that_is_said(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    is_recovering(cluster)
    done = told(capfd, "topic", "move", "orders", "--to", "b2", "--force", "--yes", "--json")
    assert (done.code, done.json[0]["step"], done.json[0]["given_up"]) == (0, "moved", [17, 40])
    assert cluster.changes() == [
        ("move_topic", TOPIC, ("force", True), ("give_up", False), ("partition", None), ("to", "b2"))
    ]


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("\n", 1), ("", 1), ("y\n", 0)])
def test_a_broker_that_answers_is_asked(
    cluster: FakeCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    is_recovering(cluster)
    monkeypatch.setattr(terminal, "can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    done = told(capfd, "topic", "move", "orders", "--to", "b2", "--force")
    assert done.code == code
    assert "the records from offset 17 on" in done.err
    assert "[y/N]" in done.err
    assert len(cluster.changes()) == 1 - code


def test_other_partitions_are_not_asked_about(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    moves_away(cluster)
    script = cluster.scripts["moves"]
    cluster.says("moves", [an_unload("recovering", 1, given_up=(0, 1))], *script)
    done = told(capfd, "topic", "move", "orders", "--to", "b2", "--force", "--partition", "0", "--json")
    assert (done.code, done.json[0]["step"]) == (0, "moved")


# Brokers


def test_brokers_are_listed_f5(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    """F5: list brokers."""
    gone = a_broker("b3", state="unreachable", url=None, uptime_seconds=None, partitions=0)
    cluster.says("cluster", a_cluster(a_broker("b1"), gone))
    lines = told(capfd, "broker", "list").out.splitlines()
    assert lines[1].split("  ")[0] == "b1"
    assert "leader" in lines[1]
    assert "2.0 KiB/s" in lines[1]
    assert "1 h 1 min" in lines[1]
    assert "unreachable" in lines[2]
    assert [info["state"] for info in told(capfd, "broker", "list", "--json").json] == ["active", "unreachable"]


def test_a_drain_is_watched_until_nothing_is_left_f7(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    """F5, F7: drain a broker."""
    cluster.says("drain_broker", a_broker("b2", state="draining", partitions=3))
    cluster.says(
        "cluster", *(a_cluster(a_broker("b1"), a_broker("b2", state="draining", partitions=n)) for n in (3, 2, 2, 0))
    )
    done = told(capfd, "broker", "drain", "b2")
    assert done.code == 0
    assert [line.split("  ")[-1] for line in done.err.splitlines()] == ["2 partitions left", "0 partitions left"]
    assert "drained b2: 3 partitions moved away" in done.out
    cluster.says("cluster", a_cluster(a_broker("b1"), a_broker("b2", state="draining", partitions=0)))
    assert told(capfd, "broker", "drain", "b2", "--json").json["partitions"] == 0


def test_a_drain_that_cannot_go_on_says_why(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.says("drain_broker", a_broker("b1", state="draining", partitions=1))
    draining = a_broker("b1", state="draining", partitions=1)
    failing = an_unload("requested", error="the archive cannot be reached")
    cluster.says(
        "cluster",
        a_cluster(draining, a_broker("b2", state="unreachable")),
        a_cluster(draining, a_broker("b2"), unloads=[failing]),
        a_cluster(a_broker("b1", state="draining", partitions=0), a_broker("b2")),
    )
    done = told(capfd, "broker", "drain", "b1")
    assert "no other broker is active" in done.err
    assert "/default/orders partition 0: the archive cannot be reached" in done.err
    assert done.code == 0


def test_a_drain_can_be_left_to_itself(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.says("drain_broker", a_broker("b2", state="draining", partitions=3))
    done = told(capfd, "broker", "drain", "b2", "--no-wait")
    assert (done.code, done.err, "draining b2" in done.out) == (0, "", True)
    assert cluster.asked == [("drain_broker", "b2")]


def test_a_broker_is_activated_f7(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.says("activate_broker", a_broker("b2"))
    assert "b2 is active" in told(capfd, "broker", "activate", "b2").out
    assert told(capfd, "broker", "activate", "b2", "--json").json["broker_id"] == "b2"


# The cluster


def test_the_cluster_is_shown_in_one_look(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.says(
        "cluster",
        a_cluster(a_broker("b1"), a_broker("b2"), unassigned=2, recovering=1, unloads=[an_unload("sealed", 1)]),
    )
    text = told(capfd, "cluster", "status").out
    for words in ("leader", "unassigned  2", "recovering  1", "/default/orders", "sealed"):
        assert words in text, text
    assert told(capfd, "cluster", "status", "--json").json["unloads"][0]["step"] == "sealed"


def test_a_rebalance_says_what_it_moves_f7(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    """F5, F7: rebalance."""
    cluster.says("rebalance", Rebalanced(moves=[an_unload("requested", 4)]), Rebalanced(moves=[]))
    assert "/default/orders  " in told(capfd, "cluster", "rebalance").out
    assert "nothing to move" in told(capfd, "cluster", "rebalance").out
    assert told(capfd, "cluster", "rebalance", "--json").json == {"moves": []}


# What is drawn in a terminal


def drawn(block: Any) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(block)
    return console.export_text()


def test_a_terminal_shows_all_steps_with_the_one_that_is_on() -> None:
    view = MoveView(is_silent=True)
    watch = move_watch.MoveWatch(TOPIC, [an_unload("paused")], _placed(a_place("b1", 5)), view.see)
    assert "requested → quiesced → paused → sealed → unassigned → moved" in drawn(view.table())
    watch.see([an_unload("recovering")], _placed(a_place(None, 5)), 1.0)
    assert "recovering" in drawn(view.table())
    assert "broker b1 died" in drawn(view.table())


def test_a_terminal_shows_how_much_of_a_drain_is_left() -> None:
    draining = DrainProgress("b2", is_silent=False)
    draining.first, draining.left = 8, 2
    assert "2 of 8 partitions left" in drawn(draining.show())


def _placed(*places: PartitionPlacement) -> Placement:
    return Placement(topic=TOPIC, topic_id="t", partitions=list(places), brokers=[])


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (90_000, "1 d 1 h")]
)
def test_long_times_are_told_in_two_units(seconds: float, text: str) -> None:
    assert terminal.seconds_text(seconds) == text


def test_status_says_whose_clock_is_off(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    ahead, behind = a_broker("b1", clock_ahead_seconds=172_800.0), a_broker("b2", clock_ahead_seconds=-7200.0)
    cluster.says("cluster", a_cluster(ahead, behind, a_broker("b3")))
    said = told(capfd, "cluster", "status").err
    assert "the clock of b1 is 2 d 0 h ahead" in said
    assert "the clock of b2 is 2 h 0 min behind" in said
    assert "b3" not in said


def test_a_move_is_taken_back_f5(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.says("cancel_moves", [an_unload("requested", error="no room")], [])
    assert "1 partition of /default/orders" in told(capfd, "topic", "cancel-move", "orders", "--partition", "0").out
    assert "no partition of /default/orders is about to move" in told(capfd, "topic", "cancel-move", "orders").out

"""P10 on the command line: `sulina events` and `sulina topic subscribers`, against a real node."""

import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import msgspec
import pytest

import sulina
from sulina.cli.events import SHOWN_MAX, line
from sulina.client import Message
from sulina.wire.messages import PubSubEvent
from tests.cli.conftest import SECONDS_MAX, Served


@contextmanager
def listening(node: Served, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, once it listens."""
    with node.started("events", *words) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said == f"listening to {node.url}; Ctrl-C stops it\n".encode(), said
        yield process


def shown(process: subprocess.Popen[bytes]) -> list[str]:
    """The next line, in words; without the time."""
    assert process.stdout is not None
    return process.stdout.readline().decode().split()[1:]


def test_events_are_shown_as_they_happen_until_ctrl_c(node: Served) -> None:
    node.ok("topic", "create", "seen")
    node.ok("topic", "create", "unseen")
    done: Future[object] = Future()

    def handle(message: Message) -> None:
        done.set_result(message.payload)

    with listening(node, "--topic", "seen") as events, sulina.connect_sync(node.url) as pubsub:
        pubsub.publish("/default/unseen", "nothing of this")
        pubsub.subscribe("/default/seen", handle, name="the screen")
        kind, topic, *fields = shown(events)
        assert (kind, topic) == ("subscriber_added", "/default/seen")
        assert 'subscriber="the screen"' in " ".join(fields)
        assert pubsub.publish("/default/seen", "hello").is_accepted
        assert done.result(SECONDS_MAX) == "hello"
        both = [shown(events), shown(events)]
        assert ["publish_accepted", "/default/seen", "partition=0", "count=1"] in both
        assert sorted(words[0] for words in both) == ["delivery_succeeded", "publish_accepted"]
        events.send_signal(signal.SIGINT)
        assert events.wait(SECONDS_MAX) == 130
        assert events.stderr is not None
        assert events.stderr.read() == b""


def test_p10_snapshots_of_metrics_are_shown(node: Served) -> None:
    with sulina.connect_sync(node.url) as pubsub:
        pubsub.admin.create_topic("/default/counted")
        pubsub.publish_batch("/default/counted", ["x", "y"])
    with listening(node, "--type", "metrics_snapshot", "--topic", "counted", "-n", "1") as events:
        kind, topic, accepted, *_ = shown(events)
        assert (kind, topic, accepted) == ("metrics_snapshot", "/default/counted", "accepted=2")
        assert events.wait(SECONDS_MAX) == 0


def test_types_are_chosen_and_it_ends_after_the_count(node: Served) -> None:
    node.ok("topic", "create", "chosen")
    with listening(node, "--type", "topic_deleted", "-t", "publish_rejected", "-n", "2") as events:
        node.ok("produce", "chosen", given="x\n")
        node.ok("topic", "delete", "chosen")
        node.ok("topic", "create", "nobody", "--delivery", "non_reliable", "--partition-behavior", "drop")
        node.run("produce", "nobody", given="x\n")
        assert shown(events)[:2] == ["topic_deleted", "/default/chosen"]
        kind, topic, reason, *_ = shown(events)
        assert (kind, topic, reason) == ("publish_rejected", "/default/nobody", "reason=NoSubscribers")
        assert events.wait(SECONDS_MAX) == 0


def test_json_is_a_document_a_line_and_nothing_else(node: Served) -> None:
    node.ok("topic", "create", "documents")
    with node.started("events", "--topic", "documents", "--count", "1", "--json") as events:
        with sulina.connect_sync(node.url) as client:
            while events.poll() is None:  # it does not say when it has begun to listen
                client.publish("/default/documents", "x")
        assert events.stdout is not None
        assert events.stderr is not None
        event = msgspec.json.decode(events.stdout.read(), type=PubSubEvent)
        assert (event.type, event.topic) == ("publish_accepted", "/default/documents")
        assert event.fields == {"partition": 0, "count": 1}
        assert (events.stderr.read(), events.returncode) == (b"", 0)


def test_what_is_wrong_is_said(node: Served) -> None:
    assert node.run("events", "--topic", "/default/../x", "--json").error["code"] == "invalid_name"
    assert node.run("events", "--count", "0").code == 2
    assert node.run("events", "--type", "x" * 10_000, "--json").error["code"] == "invalid_settings"


def test_subscribers_are_listed_with_where_they_are(node: Served) -> None:
    node.ok("topic", "create", "watched", "--partitions", "2")
    none = node.ok("topic", "subscribers", "watched")
    assert (none.out, "has no subscribers" in none.err) == ("", True)
    with sulina.connect_sync(node.url) as pubsub:
        pubsub.subscribe("/default/watched", lambda _: None, name="screen")
        found = node.ok("topic", "subscribers", "watched", "--json").json
        assert [(info["node"], info["name"], info["status"], info["offset"]) for info in found] == [
            ("local", "screen", "active", 0),
        ] * 2
        assert {info.name for info in pubsub.admin.subscribers("/default/watched")} == {"screen"}
        heading, *rows = node.ok("topic", "subscribers", "/default/watched").out.splitlines()
        assert heading.split() == ["node", "name", "partition", "status", "offset"]
        assert [row.split() for row in rows] == [["local", "screen", str(number), "active", "0"] for number in range(2)]
    assert "did you mean /default/watched?" in node.run("topic", "subscribers", "wacthed").err


def test_a_policy_says_how_messages_are_delivered(node: Served) -> None:
    flags = ("--delivery-policy", "at_most_once", "--partition-behavior", "drop")
    made = node.ok("topic", "create", "policed", "--delivery", "non_reliable", *flags, "--json").json
    assert made["settings"]["policy"] == {"delivery_policy": "at_most_once", "partition_behavior": "drop"}
    inherited = node.ok("namespace", "create", "lossy", *flags, "--json").json
    assert inherited["policy"] == made["settings"]["policy"]
    assert node.run("topic", "create", "policed", "--delivery-policy", "exactly_once").code == 2


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"count": 1, "node": "b1"}, "count=1 node=b1"),
        ({"reason": "no ack within 5 s"}, 'reason="no ack within 5 s"'),
        ({"name": "", "to": None, "is_lost": True}, 'name="" to=- is_lost=true'),
        ({"name": "a\x1b[2J\nb\x9b"}, "name=a\\x1b[2J\\nb\\x9b"),
        ({"name": "[red]x[/red]"}, "name=[red]x[/red]"),
        ({"name": "x" * 10_000}, f"name={'x' * SHOWN_MAX}…"),
    ],
)
def test_an_event_is_one_line_that_disturbs_no_terminal(fields: dict[str, object], text: str) -> None:
    made = line(PubSubEvent(at=1_767_225_600.25, type="delivery_failed", topic="/default/orders", fields=fields))
    moment, _, rest = made.plain.partition("  ")
    assert moment.endswith(":00.250")
    assert rest == f"delivery_failed  /default/orders  {text}"
    assert {str(span.style) for span in made.spans} == {"dim", "red", "cyan"}

"""Every command that speaks with a node, against a real one."""

import json
import signal
import time
from pathlib import Path

import pytest

from sulina.core.records.routing import partition_of
from tests.cli.conftest import SECONDS_MAX, Served, ended


def test_a_topic_is_created_listed_shown_and_deleted(node: Served) -> None:
    settings = ("--partitions", "2", "--retention-seconds", "60")
    assert "created /default/new with 1 partition" in node.ok("topic", "create", "new").out
    made = node.ok("topic", "create", "life", *settings, "--json").json
    assert made["topic"] == "/default/life"
    assert made["policy"]["retention_seconds"] == 60
    assert (
        "/default/life exists already with 2 partitions and these settings"
        in node.ok("topic", "create", "/default/life", *settings).out
    )
    assert "/default/life" in [info["topic"] for info in node.ok("topic", "list", "--json").json]
    assert node.run("topic", "list", "--namespace", "nowhere", "--json").error["code"] == "namespace_not_found"
    shown = node.ok("topic", "show", "life", "--json").json
    assert [part["end_offset"] for part in shown["partitions"]] == [0, 0]
    text = node.ok("topic", "show", "life").out
    assert "retention_seconds=60.0" in text
    assert "end offset" in text
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert node.ok("topic", "delete", "life", "--json").json == {"deleted": "/default/life"}
    assert node.run("topic", "show", "life").code == 1


def test_a_topic_has_the_schema_of_a_file(node: Served, tmp_path: Path) -> None:
    schema = tmp_path / "order.json"
    schema.write_text('{"type": "object", "required": ["id"]}')
    made = node.ok("topic", "create", "typed", "--schema", str(schema), "--json").json
    assert made["settings"]["schema"]["kind"] == "json"
    assert node.ok("produce", "typed", given='{"id": 1}\n').code == 0
    refused = node.run("produce", "typed", "--json", given="{}\n")
    assert (refused.code, refused.error["code"]) == (1, "invalid_record")
    assert node.run("produce", "typed", given="not json at all\n").code == 1
    node.ok("topic", "create", "typed", "--no-validate")
    node.ok("produce", "typed", given="not json at all\n")
    schema.write_text("{")
    assert "not JSON" in node.run("topic", "create", "typed2", "--schema", str(schema)).err


def test_produce_says_which_partitions_took_their_records_when_another_did_not_l16(
    node: Served, tmp_path: Path
) -> None:
    schema = tmp_path / "order.json"
    schema.write_text('{"type": "object", "required": ["id"]}')
    node.ok("topic", "create", "parts", "--partitions", "2", "--schema", str(schema))
    fits, bad = (next(key for key in "abcdefgh" if partition_of(key.encode(), 2) == number) for number in (0, 1))
    lines = f'{fits}={{"id": 1}}\n{bad}={{"id": 2}}\n{fits}={{"id": 3}}\n{bad}={{}}\n'
    refused = node.run("produce", "parts", "--key-separator", "=", "--json", given=lines)
    assert (refused.code, refused.error["code"]) == (1, "split_failed")
    assert "1 of 2 parts" in refused.error["message"]
    assert "partitions that accepted theirs: 0. partition 1: record 1" in refused.error["message"]
    assert "2 records acknowledged before the error" in refused.error["hint"]
    ends = [part["end_offset"] for part in node.ok("topic", "show", "parts", "--json").json["partitions"]]
    assert ends == [2, 0], "each part is all or nothing"


def test_producers_are_listed_while_they_are_connected_f5(node: Served) -> None:
    node.ok("topic", "create", "sold")
    assert "no connected producers" in node.ok("topic", "producers", "sold").err
    with node.started("produce", "sold") as producer:
        assert producer.stdin is not None
        producer.stdin.write(b"one\n")
        producer.stdin.flush()
        deadline = time.monotonic() + SECONDS_MAX
        while not (found := node.ok("topic", "producers", "sold", "--json").json):
            assert time.monotonic() < deadline
        assert (found[0]["broker_id"], found[0]["is_connected"]) == ("local", True)
        assert found[0]["producer"] in node.ok("topic", "producers", "sold").out
    while node.ok("topic", "producers", "sold", "--json").json:
        assert time.monotonic() < deadline, "it has left"


def test_a_namespace_is_created_listed_shown_and_deleted(node: Served) -> None:
    made = node.ok("namespace", "create", "shop", "--ack", "memory", "--json").json
    assert made == {"namespace": "shop", "policy": {"ack": "memory"}, "topics": 0}
    assert "ack=memory" in node.ok("namespace", "list").out
    node.ok("topic", "create", "/shop/a")
    busy = node.run("namespace", "delete", "shop", "--json")
    assert busy.error["code"] == "namespace_not_empty"
    assert "sulina topic list --namespace shop" in busy.error["hint"]
    assert [info["topic"] for info in node.ok("topic", "list", "--namespace", "shop", "--json").json] == ["/shop/a"]
    node.ok("topic", "delete", "/shop/a")
    assert node.ok("namespace", "show", "shop", "--json").json["topics"] == 0
    assert node.ok("namespace", "delete", "shop", "--json").json == {"deleted": "shop"}


def test_lines_go_in_and_come_out_in_every_format(node: Served) -> None:
    node.ok("topic", "create", "lines")
    told = node.ok("produce", "lines", "--json", "--header", "from=test", given="a=1\r\nb=2\nlast").json
    assert told["records"] == 3
    assert told["partitions"] == [{"partition": 0, "first_offset": 0, "last_offset": 2}]
    node.ok("produce", "lines", "--key-separator", "=", given="k=v=w\n")
    node.ok("produce", "lines", "--key", "fixed", "--whole", given=b"two\nlines \xff")
    assert node.ok("consume", "lines", "--no-follow", "--format", "raw", "-n", "4").out == "a=1\nb=2\nlast\nv=w\n"
    records = node.ok("consume", "lines", "--no-follow", "--json").lines
    assert [record["offset"] for record in records] == [0, 1, 2, 3, 4]
    assert records[0]["headers"] == [{"name": "sulina-serializer", "value": "1"}, {"name": "from", "value": "test"}]
    assert (records[3]["key"], records[3]["value"]) == ("k", "v=w")
    assert (records[4]["key"], records[4]["value_b64"]) == ("fixed", "dHdvCmxpbmVzIP8=")
    text = node.ok("consume", "lines", "--no-follow", "--start", "offset:3").out.splitlines()
    assert text[0].startswith("0:3  ")
    assert text[0].endswith("  k  v=w")
    assert text[1].endswith("  fixed  two\\nlines �")


def test_records_are_generated_and_partitions_chosen(node: Served, tmp_path: Path) -> None:
    node.ok("topic", "create", "many", "--partitions", "3")
    told = node.ok("produce", "many", "--count", "2000", "--rate", "20000", "--size", "64", "--json").json
    assert (told["records"], told["bytes"]) == (2000, 128_000)
    node.ok("produce", "many", "--count", "10", "--partition", "1", "--batch", "3")
    shown = node.ok("topic", "show", "many", "--json").json["partitions"]
    assert sum(part["end_offset"] for part in shown) == 2010
    one = node.ok("consume", "many", "-p", "1", "--no-follow", "--json").lines
    assert {record["partition"] for record in one} == {1}
    assert len(one) == shown[1]["end_offset"]
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {number}\n" for number in range(5000)))
    assert node.ok("produce", "many", "--file", str(lines), "--key", "k", "--json").json["records"] == 5000


def test_a_line_is_published_at_once_not_when_the_input_ends(node: Served) -> None:
    node.ok("topic", "create", "live")
    with node.started("consume", "live", "--format", "raw") as consumer, node.started("produce", "live") as producer:
        assert producer.stdin is not None
        assert consumer.stdout is not None
        producer.stdin.write(b"now\n")
        producer.stdin.flush()
        assert consumer.stdout.readline() == b"now\n"
        assert producer.poll() is None


def test_a_consumer_of_a_subscription_goes_on_where_the_last_one_ended(node: Served) -> None:
    node.ok("topic", "create", "work")
    node.ok("produce", "work", given="".join(f"{number}\n" for number in range(10)))
    first = node.ok("consume", "work", "--subscription", "s", "--count", "4", "--format", "raw").out
    assert first == "0\n1\n2\n3\n"
    assert node.ok("subscription", "show", "work", "s", "--json").json["cursors"][0]["offset"] == 4
    rest = node.ok("consume", "work", "-s", "s", "--no-follow", "--format", "raw").out
    assert rest == "4\n5\n6\n7\n8\n9\n"
    listed = node.ok("subscription", "list", "work", "--json").json
    assert [(info["subscription"], info["mode"], info["lag"]) for info in listed] == [("s", "exclusive", 0)]
    assert "exclusive" in node.ok("subscription", "list", "work").out


def test_a_subscription_is_created_moved_and_deleted(node: Served) -> None:
    node.ok("topic", "create", "moved", "--partitions", "2")
    node.ok("produce", "moved", "--partition", "0", given="a\nb\n")
    node.ok("produce", "moved", "--partition", "1", given="c\n")
    made = node.ok("subscription", "create", "moved", "s", "--mode", "shared", "--start", "earliest", "--json").json
    assert (made["mode"], made["lag"]) == ("shared", 3)
    text = node.ok("subscription", "show", "moved", "s").out
    assert "in flight" in text
    assert node.ok("subscription", "seek", "moved", "s", "latest", "--json").json["lag"] == 0
    back = node.ok("subscription", "seek", "moved", "s", "offset:1", "--partition", "0", "--json").json
    assert back["lag"] == 1
    deleted = node.ok("subscription", "delete", "moved", "s", "--json").json
    assert deleted == {"deleted": "s", "topic": "/default/moved"}
    assert node.run("subscription", "show", "moved", "s", "--json").error["code"] == "subscription_not_found"


def test_tail_shows_the_newest_then_what_comes_and_ends_quietly(node: Served) -> None:
    node.ok("topic", "create", "tailed", "--partitions", "2")
    node.ok("produce", "tailed", "--partition", "0", given="old\n")
    node.ok("produce", "tailed", "--partition", "1", given="a\nb\n")
    assert node.ok("tail", "tailed", "--no-follow", "-n", "2", "--format", "raw").out == "a\nb\n"
    with node.started("tail", "tailed", "--lines", "1", "--format", "raw") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stdout.readline() == b"b\n"
        node.ok("produce", "tailed", "--partition", "0", given="new\n")
        assert tail.stdout.readline() == b"new\n"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(SECONDS_MAX) == 130
        assert tail.stderr.read() == b""


def test_a_reader_that_goes_away_ends_a_command_quietly(node: Served) -> None:
    node.ok("topic", "create", "piped")
    node.ok("produce", "piped", "--count", "5000", "--size", "200")
    with node.started("consume", "piped") as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline()
        consumer.stdout.close()
        assert consumer.wait(SECONDS_MAX) == 141
        assert consumer.stderr.read() == b""
        consumer.stdout = None


def test_a_mistyped_topic_is_recognised(node: Served) -> None:
    node.ok("topic", "create", "invoices")
    done = node.run("topic", "show", "invocies")
    assert (done.code, done.out) == (1, "")
    assert "did you mean /default/invoices?" in done.err
    assert "sulina topic create /default/zebra" in node.run("produce", "zebra", given="x\n").err
    assert "letters, digits" in node.run("topic", "show", "/default/../x").err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["consume", "lines", "--start", "yesterday"], "invalid_settings"),
        (["produce", "lines", "--rate", "5"], "invalid_input"),
        (["produce", "lines", "--count", "5", "--whole"], "invalid_input"),
        (["produce", "lines", "--header", "x"], "invalid_input"),
        (["produce", "lines", "--file", "/no/such/file"], "invalid_input"),
        (["consume", "lines", "--subscription", "s", "--partition", "0"], "invalid_input"),
        (["topic", "create", "lines", "--segment-bytes", "1"], "invalid_settings"),
        (["topic", "create", "/nowhere/x"], "namespace_not_found"),
        (["topic", "list", "--url", "127.0.0.1:80"], "invalid_settings"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(node: Served, words: list[str], code: str) -> None:
    done = node.run(*words, "--json")
    assert done.code == 1
    assert done.error["code"] == code
    told = node.run(*words)
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1


def test_no_node_is_said_with_what_to_do() -> None:
    done = ended("topic", "list", "--url", "http://127.0.0.1:9")
    assert done.code == 1
    assert "start a node with `sulina serve`" in done.err
    assert done.err.count("\n") == 1
    assert ended("topic", "list", "--url", "http://127.0.0.1:9", "--json").error["code"] == "disconnected"


def test_what_was_acked_before_a_failure_is_told(node: Served) -> None:
    node.ok("topic", "create", "halfway")
    with node.started("produce", "halfway", "--key-separator", ":", "--json") as producer:
        assert producer.stdin is not None
        assert producer.stderr is not None
        producer.stdin.write(b"k:v\n")
        producer.stdin.flush()
        until = time.monotonic() + SECONDS_MAX
        while not node.ok("consume", "halfway", "--no-follow").out:
            assert time.monotonic() < until
        producer.stdin.write(b"nothing\n")
        producer.stdin.flush()
        assert producer.wait(SECONDS_MAX) == 1
        error = json.loads(producer.stderr.read())["error"]
        assert "1 record acknowledged before the error" in error["hint"]


def test_doctor_finds_the_node(node: Served) -> None:
    done = ended("doctor", "--http", node.url.removeprefix("http://"), "--data", str(node.serving.data), "--json")
    port = next(finding for finding in done.json["findings"] if finding["check"] == "port")
    assert port["grade"] == "ok"
    assert "a node answers" in port["found"]

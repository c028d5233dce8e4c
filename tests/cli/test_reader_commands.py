"""S7 on the command line: `sulina reader list|show|delete`, against a real node."""

import json
from urllib.request import Request, urlopen

from tests.cli.conftest import Served


def register(node: Served, name: str, topic: str, positions: dict[str, int], **more: object) -> None:
    body = json.dumps({"positions": positions, **more}).encode()
    request = Request(
        f"{node.url}/v1/readers/{name}/default/{topic}",
        data=body,
        method="PUT",
        headers={"content-type": "application/json"},
    )
    with urlopen(request) as response:
        assert response.status in (200, 201)


def test_s7_readers_are_listed_shown_and_deleted(node: Served) -> None:
    node.ok("topic", "create", "read", "--partitions", "2")
    node.ok("produce", "read", "--partition", "0", given="a\nb\nc\n")
    assert "has no registered readers" in node.ok("reader", "list", "read").err
    register(node, "nightly", "read", {"0": 1, "1": 0}, description="orders by day", expires_seconds=86400)
    [listed] = node.ok("reader", "list", "read", "--json").json
    assert (listed["reader"], listed["topic"], listed["lag"]) == ("nightly", "/default/read", 2)
    assert listed in node.ok("reader", "list", "--json").json
    heading, row = node.ok("reader", "list", "/default/read").out.splitlines()
    assert heading.split() == ["reader", "topic", "partitions", "lag", "heard", "of", "state", "description"]
    assert "nightly" in row
    assert row.endswith("live   orders by day")
    assert node.ok("reader", "show", "nightly", "read", "--json").json == listed
    text = node.ok("reader", "show", "nightly", "read").out
    assert "1 d 0 h" in text
    assert "end offset" in text
    deleted = node.ok("reader", "delete", "nightly", "read", "--json").json
    assert deleted == {"deleted": "nightly", "topic": "/default/read"}
    gone = node.run("reader", "show", "nightly", "read", "--json").error
    assert (gone["code"], "sulina reader list" in gone["hint"]) == ("reader_not_found", True)


def test_s7_a_reader_of_what_is_not_there_is_said(node: Served) -> None:
    assert node.run("reader", "list", "nothing", "--json").error["code"] == "topic_not_found"
    node.ok("topic", "create", "named")
    assert node.run("reader", "show", "../x", "named", "--json").error["code"] == "invalid_name"
    register(node, "weekly", "named", {"0": 0})
    assert "deleted reader weekly of /default/named" in node.ok("reader", "delete", "weekly", "named").out

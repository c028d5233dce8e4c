"""What `sulina pipeline init` writes and refuses, on a real node; and what `run` refuses before Spark starts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sulina.spark.pipeline.definition import load
from tests.cli.conftest import Served, told
from tests.support.serving import serving


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests here: each makes topics of its own, and asks for all or by name."""
    with serving(tmp_path_factory.mktemp("node") / "data") as running:
        yield Served(running)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: Served) -> Path:
    folder = tmp_path / "my shop"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SULINA_URL", node.url)
    return folder


def test_a_node_without_topics_says_how_to_make_one_or_to_get_an_example(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path / "empty") as empty:
        refused = told(capfd, "pipeline", "init", "--url", empty.url)
    assert refused.code == 1
    assert f"the node at {empty.url} has no topics" in refused.err
    assert "`sulina topic create orders` makes one" in refused.err
    down = told(capfd, "pipeline", "init", "--url", empty.url)
    assert down.code == 1
    assert "start a node with `sulina serve`" in down.err
    assert "`sulina pipeline init --example`" in down.err
    assert not Path("pipeline.toml").exists()
    assert told(capfd, "pipeline", "init", "--example").code == 0
    assert [one.table for one in load("pipeline.toml").all_tables] == ["orders_raw", "orders", "revenue"]


def test_s3_a_definition_is_written_for_the_topics_of_a_node(
    node: Served, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "order.json").write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    told(capfd, "topic", "create", "typed", "--schema", "order.json")
    told(capfd, "topic", "create", "ticks", "--delivery", "non_reliable")
    told(capfd, "topic", "create", "mixed", "--partitions", "3")
    node.ok("produce", "mixed", given="".join(f"{n}\n" for n in range(500)))
    node.ok("produce", "mixed", given='{"order": 0}\n{"order": 1, "tags": ["a"]}\n')
    done = told(capfd, "pipeline", "init", "--json")
    assert done.code == 0, done
    pipeline = load("pipeline.toml")
    assert (pipeline.name, pipeline.url) == ("my_shop", node.url)
    assert [one["table"] for one in done.json["tables"]] == [one.table for one in pipeline.all_tables]
    assert {one.topic: one.table for one in pipeline.bronze} == {
        "/default/mixed": "mixed_raw",
        "/default/typed": "typed_raw",
    }
    mixed, typed = pipeline.silver
    assert (mixed.decode, mixed.columns) == ("json", {"order": "bigint", "tags": "json"})
    assert (typed.table, typed.decode) == ("typed", "schema")
    assert "best-effort topics store no records: /default/ticks" in Path("pipeline.toml").read_text()
    some = told(capfd, "pipeline", "init", "some.toml", "--topic", "typed", "--topic", "/nothing/*")
    assert [one.topic for one in load("some.toml").bronze] == ["/default/typed"], some
    assert "there is no topic /default/mixd" in told(capfd, "pipeline", "init", "x.toml", "-t", "mixd").err


def test_s3_a_file_that_exists_is_replaced_only_if_told(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "pipeline.toml").write_text("mine")
    for words in (("pipeline", "init"), ("pipeline", "init", "--example")):
        refused = told(capfd, *words)
        assert refused.code == 1
        assert "pipeline.toml exists already: use --force to replace it" in refused.err
        assert (here / "pipeline.toml").read_text() == "mine"
    assert told(capfd, "pipeline", "init", "--example", "--force").code == 0
    assert load("pipeline.toml").name == "shop"
    assert "cannot be written" in told(capfd, "pipeline", "init", "no/such/folder.toml", "--example").err


def test_s3_a_file_is_replaced_only_by_a_definition(
    node: Served, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told(capfd, "topic", "create", "some")
    (here / "pipeline.toml").write_text("mine")
    monkeypatch.setattr("sulina.spark.pipeline.first_definition.first_definition", lambda *_, **__: "name = ")
    refused = told(capfd, "pipeline", "init", "--force")
    assert refused.code == 1
    assert "pipeline.toml is not TOML" in refused.err
    assert (here / "pipeline.toml").read_text() == "mine"


def test_s3_values_that_cannot_be_decoded_are_told_before_spark_starts(
    node: Served, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told(capfd, "topic", "create", "plain")
    text = f"""name = "x"
url = {json.dumps(node.url)}
tables = "./tables"
bronze = [{{table = "plain_raw", topic = "/default/plain"}}]
silver = [{{table = "plain", from = "plain_raw"}}]
"""
    (here / "pipeline.toml").write_text(text)
    refused = told(capfd, "pipeline", "run", "--once")
    assert refused.code == 1
    assert "silver table plain: topic /default/plain has no schema" in refused.err
    assert "`sulina pipeline init`" in refused.err
    assert "decode = 'raw'" in refused.err
    assert "starting Spark" not in refused.err

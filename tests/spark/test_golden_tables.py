"""Tables, checkpoints and readers of each release, read and continued by the code of today (L20)."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sulina
from sulina.spark.delta_native import read_delta
from sulina.spark.delta_readers import live_readers
from sulina.spark.pipeline.runner import run_pipeline
from sulina.spark.table_location import TableLocation
from tests.support import serving
from tools.golden import GOLDEN, ORDERS, definition, rows

RELEASES = sorted(path.parent.name for path in GOLDEN.glob("*/index.json"))


@pytest.mark.parametrize("version", RELEASES)
def test_l20_tables_of_each_release_are_read_and_their_pipeline_goes_on(
    version: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Every row is there once; a run over the old checkpoints adds what is new, and nothing again."""
    release = GOLDEN / version
    before: Mapping[str, list[str]] = json.loads((release / "index.json").read_text())["node"]["tables"]
    for name in ("node", "tables"):
        shutil.copytree(release / name, tmp_path / name)

    def now(*names: str) -> dict[str, list[str]]:
        return {name: rows(read_delta(spark, str(tmp_path / "tables" / name))) for name in names}

    assert now(*before) == before
    assert "watcher" in live_readers(TableLocation.parse(str(tmp_path / "tables/orders")), 0.0)
    with serving.serving(tmp_path / "node") as node:
        with sulina.connect_sync(node.url) as client:
            client.publish(ORDERS, json.dumps({"id": 200, "amount": 2.5}), partition=1).raise_for_status()
            client.publish(ORDERS, "no order either", partition=1).raise_for_status()
        run_pipeline(definition(node.url, tmp_path / "tables"), spark)
    after = now("raw", "orders", "orders_quarantine")
    added: dict[str, Any] = {name: set(found) - set(before[name]) for name, found in after.items()}
    assert {name: len(found) - len(before[name]) for name, found in after.items()} == {
        "raw": 2,
        "orders": 1,
        "orders_quarantine": 1,
    }
    assert all(len(added[name]) == len(after[name]) - len(before[name]) for name in after)

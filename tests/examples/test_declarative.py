"""examples/declarative, as its README says. It starts Spark three times, so it runs only where SULINA_SLOW is set."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support import serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
RUN_SECONDS_MAX = 300

pytestmark = pytest.mark.skipif(not os.environ.get("SULINA_SLOW"), reason="takes a minute or two: make examples")


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Path]:
    """A copy of the example, with a broker of its own."""
    copy = shutil.copytree(EXAMPLE, tmp_path / "declarative")
    with serving.serving(tmp_path / "data") as node:
        for name, old, new in (
            ("pipeline.toml", "http://127.0.0.1:8080", node.url),
            ("spark-pipeline.yml", "/tmp/sulina-declarative", str(tmp_path / "storage")),
            ("conf/spark-defaults.conf", "/tmp/sulina-declarative", str(tmp_path / "storage")),
        ):
            text = (copy / name).read_text()
            assert old in text
            (copy / name).write_text(text.replace(old, new))
        sulina(copy, "topic", "create", "orders", "--schema", "orders.schema.json", "--no-validate", "--url", node.url)
        sulina(copy, "produce", "orders", "--file", "orders.jsonl", "--url", node.url)
        yield copy


def sulina(folder: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "sulina.cli", *arguments], cwd=folder, check=True, capture_output=True)


def run(example: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "run.py", *arguments],
        cwd=example,
        env=os.environ | {"SPARK_TESTING": "1"},  # Spark's own word for a port that is free
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    return said


@pytest.mark.timeout(3 * RUN_SECONDS_MAX)
def test_s3_the_same_definition_runs_as_a_spark_declarative_pipeline(example: Path, tmp_path: Path) -> None:
    run(example, "--dry")
    assert not (example / "tables").exists(), "it only looked"
    for _ in range(2):  # the second finds nothing new, and adds nothing
        assert "Run is COMPLETED" in run(example)
        lake = pa.table(DeltaTable(str(example / "tables" / "orders")).to_pyarrow_table())
        assert sorted(lake.column("id").to_pylist()) == list(range(30))
        assert sum(stored(tmp_path, "revenue").column("orders").to_pylist()) == 30
        assert len(stored(tmp_path, "orders_quarantine")) == 2


def stored(tmp_path: Path, table: str) -> pa.Table:
    files = list((tmp_path / "storage" / "warehouse" / table).glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])

"""The same job on this machine, on a Spark standalone cluster and through Spark Connect: S8."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sulina.cli import app
from sulina.client import Record, SyncClient
from sulina.errors import InvalidSettings
from sulina.spark.errors import SparkUnavailable
from sulina.spark.session import LOCAL_SETTINGS, LOOPBACK_SETTINGS, SETTINGS, session, settings_for
from tests.spark.test_pipeline import SCHEMA, order
from tests.support.serving import Serving
from tests.support.spark_cluster import Clusters, clusters
from tests.support.spark_job import define, job

Topic = Callable[..., str]
EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
JOB = Path(__file__).parents[1] / "support" / "spark_job.py"
JOB_SECONDS_MAX = 300  # of a machine that has much else to do
TABLES = (
    "batch",
    "streamed",
    "tables/raw",
    "tables/orders",
    "tables/orders_quarantine",
    "tables/large",
    "tables/revenue",
)
MOMENTS = {"quarantined_at"}  # of the run itself


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, spark_python: Mapping[str, str]) -> Iterator[Clusters]:
    with clusters(tmp_path_factory.mktemp("clusters"), spark_python) as cluster:
        yield cluster


def run(
    folder: Path, node: Serving, topic: str, copy: str, where: dict[str, str], environment: Mapping[str, str]
) -> str:
    """The job, with a driver in a process of its own: one has one session. What its Python workers are forks of."""
    given = {"folder": str(folder), "url": node.url, "topic": topic, "copy": copy, "where": where}
    done = subprocess.run(
        [sys.executable, str(JOB), json.dumps(given)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(JOB.parents[2]), **environment},
        timeout=JOB_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    noise = re.search(".*(incubator|NativeCodeLoader|log level).*", done.stderr)
    assert noise is None, f"nobody needs to know that Java says {noise}"
    *_, progress, last = map(json.loads, done.stdout.splitlines())
    assert [table["rows"] for table in progress["tables"]] == [43, 41, 30, 2]
    return str(last["daemon"])


def rows(folder: Path, table: str) -> list[Any]:
    found = pa.table(DeltaTable(str(folder / table)).to_pyarrow_table())
    columns = sorted(set(found.column_names) - MOMENTS)
    return sorted((tuple(sorted(row.items())) for row in found.select(columns).to_pylist()), key=repr)


@pytest.mark.timeout(2 * JOB_SECONDS_MAX)
def test_s8_one_job_makes_the_same_tables_locally_on_a_standalone_cluster_and_through_connect(
    cluster: Clusters,
    spark: SparkSession,
    spark_python: Mapping[str, str],
    client: SyncClient,
    node: Serving,
    topic: Topic,
    tmp_path: Path,
) -> None:
    name = topic(2, schema=SCHEMA)
    client.publish_batch(name, [Record(order(n), key=str(n)) for n in range(40)], split=True)
    client.publish_batch(name, [Record(value, key="bad") for value in ("{", order(-9), order(3))])
    places = {"local": {}, "standalone": {"master": cluster.master_url}, "connect": {"remote": cluster.connect_url}}
    folders = {place: tmp_path / place for place in places}
    copies = {place: topic(2) for place in places}
    files, reports = {}, {place: topic() for place in places}
    for place in places:
        folders[place].mkdir()
        files[place] = define(folders[place], node.url, name, reports[place])
    daemons = {"local": job(spark, folders["local"], node.url, name, copies["local"])}
    assert not app(["pipeline", "run", str(files["local"]), "--once", "--master", "local[2]"])
    with ThreadPoolExecutor() as side_by_side:
        running = {
            place: side_by_side.submit(run, folders[place], node, name, copies[place], places[place], spark_python)
            for place in ("standalone", "connect")
        }
        daemons |= {place: done.result() for place, done in running.items()}
    assert set(daemons.values()) == {"sulina.spark.daemon"}, "no worker had to import anything"
    assert len(rows(folders["local"], "tables/orders")) == 41
    for table in TABLES:
        expected = rows(folders["local"], table)
        assert expected
        assert {place: rows(folders[place], table) for place in places} == dict.fromkeys(places, expected), table
    records = {
        place: sorted((one.key, one.value) for one in client.read(copies[place], follow=False)) for place in places
    }
    assert len(records["local"]) == 43
    assert records == dict.fromkeys(places, records["local"])
    for place in places:
        *_, last = client.read(reports[place], follow=False)
        states = [(table["state"], table["rows"]) for table in json.loads(last.value or b"")["tables"]]
        assert states == [("done", 43), ("done", 41), ("done", 30), ("done", 2)], "how it ended was reported"
    assert client.admin.reader("shop.raw", name).lag == 0
    launched = cluster.master.log.read_text().count("Launching executor")
    assert launched >= len(cluster.workers), "both workers had a part in it"


@pytest.mark.needs("java")
def test_s3_a_definition_is_also_one_of_spark_declarative_pipelines(
    cluster: Clusters, client: SyncClient, node: Serving, tmp_path: Path
) -> None:
    """Dry: that it could be run. That it does is shown by tests/examples."""
    example = shutil.copytree(EXAMPLE, tmp_path / "declarative")
    schema = {"kind": "json", "definition": json.loads((example / "orders.schema.json").read_text())}
    client.admin.create_topic("/default/orders", schema=schema)
    definition = (example / "pipeline.toml").read_text()
    (example / "pipeline.toml").write_text(definition.replace("http://127.0.0.1:8080", node.url))
    done = subprocess.run(
        [sys.executable, "run.py", "--dry"],
        cwd=example,
        env=os.environ | {"SPARK_REMOTE": cluster.connect_url},
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Run is COMPLETED" in done.stdout


def test_s8_what_is_set_depends_on_where_it_runs_and_a_users_own_settings_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert settings_for("local[4]") == SETTINGS | LOCAL_SETTINGS
    assert settings_for("spark://127.0.0.1:7077") == SETTINGS | LOOPBACK_SETTINGS
    assert settings_for("spark://lake.example.com,[::1]:7077") == SETTINGS | LOOPBACK_SETTINGS
    assert settings_for("spark://lake.example.com:7077") == SETTINGS
    assert settings_for("yarn") == SETTINGS
    (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.driver.memory   8g\nspark.sql.session.timeZone=CET\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    left = settings_for("local[4]")
    assert not {"spark.driver.memory", "spark.sql.session.timeZone"} & set(left)
    assert left["spark.python.daemon.module"] == "sulina.spark.daemon"


@pytest.mark.needs("java")
@pytest.mark.parametrize("where", [{"master": "spark://127.0.0.1:1"}, {"remote": "sc://127.0.0.1:1"}])
def test_s8_where_nobody_listens_that_is_said_at_once(where: dict[str, str]) -> None:
    with pytest.raises(SparkUnavailable, match=r"nobody listens at s.*://127\.0\.0\.1:1"):
        session(**where)  # type: ignore[arg-type]


def test_s8_a_master_that_is_not_an_address_is_said_at_once() -> None:
    with pytest.raises(InvalidSettings, match=r"'lake:http' is not an address: write HOST:PORT"):
        settings_for("spark://lake:http")


def test_s8_a_master_and_a_remote_contradict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSettings, match="set only one of them"):
        session(master="local[2]", remote="sc://127.0.0.1:1")
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(InvalidSettings, match="SPARK_REMOTE"):
        session(master="local[2]")
    with pytest.raises(SparkUnavailable, match="nobody listens"):
        session()


@pytest.mark.needs("java")
def test_s8_what_java_says_when_it_does_not_start_is_shown() -> None:
    code = (
        "from sulina.spark.session import session; session(is_quiet=True, settings={'spark.driver.memory': '1 acre'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "SparkUnavailable: Spark did not start at local[*]" in done.stderr
    assert "1 acre" in done.stderr.partition("Traceback")[0]

"""What doctor finds of a cluster: an etcd and an object store, there or not, right or wrong."""

import asyncio
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sulina.broker.archives import MEMORY_FOLDER
from sulina.broker.cluster.memory import MEMORY_FILE, SEEN_FILE
from sulina.broker.stored_topic import StoredTopic
from sulina.cli import run
from sulina.cli.doctor import Grade
from sulina.cli.doctor import stores as checks
from sulina.config import Settings
from sulina.core.cluster import keys
from sulina.core.formats import METADATA
from sulina.core.topic import DeliveryGuarantee
from sulina.node.cluster import open_metadata
from sulina.ports import Put
from sulina.storage import objects as stores
from sulina.types import TopicName
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture


def a_cluster(tmp_path: Path, metadata: str, **more: Any) -> Settings:
    return Settings(data=str(tmp_path), broker_id="b1", metadata=metadata, objects=f"file://{tmp_path}/objects", **more)


def test_a_cluster_that_will_do_is_checked_where_it_is_configured(
    etcd: EtcdServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SULINA_METADATA", etcd.url + etcd.new_prefix())
    monkeypatch.setenv("SULINA_OBJECTS", f"file://{tmp_path}/objects")
    code = run(["doctor", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data"), "--json"])
    findings = {finding["check"]: finding for finding in json.loads(capfd.readouterr().out)["findings"]}
    assert code == 0, findings
    assert findings["etcd"]["grade"] == "ok", findings["etcd"]
    assert "version 3." in findings["etcd"]["found"]
    assert "1 of 1 member answer" in findings["etcd"]["found"]
    assert abs(findings["etcd"]["figures"]["clock_seconds"]) <= 1.0
    assert 0 < findings["objects"]["figures"]["p50_ms"] <= findings["objects"]["figures"]["p99_ms"]
    assert list((tmp_path / "objects").iterdir()) == [], "it leaves nothing behind"


def test_members_that_do_not_answer_are_named(etcd: EtcdServer, tmp_path: Path) -> None:
    finding = checks.check_etcd(a_cluster(tmp_path, f"{etcd.url},127.0.0.1:9"))
    assert finding.grade == Grade.WARN
    assert "1 of 2 members" in finding.found
    assert "127.0.0.1:9" in str(finding.advice)


def test_an_etcd_that_is_not_there_fails_and_its_password_is_not_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SULINA_METADATA_PASSWORD", "hunter2")
    words = ["--metadata", "etcd://127.0.0.1:9", "--metadata-user", "root", "--objects", f"file://{tmp_path}/objects"]
    assert run(["doctor", "--http", "127.0.0.1:0", "--data", str(tmp_path), *words]) == 1
    told = capfd.readouterr()
    assert "etcd://127.0.0.1:9 does not answer" in told.out
    assert "hunter2" not in told.out + told.err


def test_r11_a_cluster_of_which_nothing_answers_is_not_well(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--objects", f"file://{tmp_path}/objects", "--data", str(tmp_path)]
    assert run(["doctor", "--cluster", "--url", "http://127.0.0.1:9", *words, "--json"]) == 1
    told = json.loads(capfd.readouterr().out)
    failed = {finding["check"]: finding["found"] for finding in told["findings"] if finding["grade"] == "fail"}
    assert failed.keys() == {"brokers"}
    assert "http://127.0.0.1:9 does not answer" in failed["brokers"]
    assert not told["is_healthy"]
    assert not (tmp_path / "objects").exists(), "it leaves nothing behind"


def test_r11_an_etcd_that_is_empty_and_an_archive_that_is_not_there_are_told_without_a_broker(
    etcd: EtcdServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--metadata", etcd.url + etcd.new_prefix(), "--objects", f"file://{tmp_path}/none"]
    assert run(["doctor", "--cluster", *words]) == 1
    told = capfd.readouterr()
    assert "FAIL brokers      no broker is registered in etcd" in told.out
    assert "FAIL leader" in told.out
    assert "not checked, because not given: --data" in told.err


def test_l18_what_a_newer_version_has_written_is_a_finding_that_says_to_upgrade(
    etcd: EtcdServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, objects = tmp_path / "data", tmp_path / "objects"
    (objects / MEMORY_FOLDER).mkdir(parents=True)
    data.mkdir()
    newer = b'{"format":2,"all":"is different"}'
    seen, kept = data / SEEN_FILE, objects / MEMORY_FOLDER / "b1.json"
    seen.write_bytes(newer)
    kept.write_bytes(newer)
    settings = a_cluster(data, etcd.url + etcd.new_prefix())
    words = ["--metadata", settings.metadata, "--objects", f"file://{objects}", "--data", str(data), "--json"]

    def failed() -> dict[str, str]:
        assert run(["doctor", "--cluster", *words]) == 1
        findings = json.loads(capfd.readouterr().out)["findings"]
        return {each["check"]: f"{each['found']}; {each.get('advice')}" for each in findings if each["grade"] == "fail"}

    found = failed()
    assert f"{seen} has cluster memory format 2" in found["disk logs"]
    assert f"{MEMORY_FOLDER}/b1.json has cluster memory format 2" in found["archive"]
    assert all("upgrade this Sulina" in found[check].partition(";")[2] for check in ("disk logs", "archive"))
    assert "etcd" not in found
    seen.unlink()
    (data / MEMORY_FILE).write_bytes(newer)
    assert f"{data / MEMORY_FILE} has cluster memory format 2" in failed()["disk logs"]

    async def put() -> None:
        metadata = await open_metadata(settings, settings.data)
        topic = TopicName("default", "orders")
        head = METADATA.encode(StoredTopic(DeliveryGuarantee.RELIABLE, 1, 0, "t1"))
        await metadata.txn(puts=[Put(keys.delivery(topic), head), Put(keys.policy(topic), newer)])
        await metadata.close()

    asyncio.run(put())
    assert "/topics/default/orders/policy has metadata format 2" in failed()["etcd"]


def test_an_old_a_slow_and_an_unwell_etcd_are_told(
    etcd: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = a_cluster(tmp_path, etcd.url)
    monkeypatch.setattr(checks, "SLOW_ETCD_MS", 0.0)
    assert "move it nearer" in str(checks.check_etcd(settings).advice)
    late = SimpleNamespace(time=lambda: time.time() - 30, perf_counter=time.perf_counter)
    monkeypatch.setattr(checks, "time", late)
    assert re.search(r"by \+(29|30|31) s", str(checks.check_etcd(settings).advice))
    monkeypatch.setattr(checks, "ETCD_VERSION_MIN", (9, 9))
    assert checks.check_etcd(settings).grade == Grade.FAIL


def test_an_object_store_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file")
    finding = checks.check_objects(a_cluster(tmp_path, "etcd://127.0.0.1:9"))
    assert finding.grade == Grade.FAIL
    assert "--objects" in str(finding.advice)


def test_a_store_that_lets_two_be_first_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U14: owners are fenced by conditional puts; a store without them must not be used."""

    def put(store: stores.DirectoryObjects, path: str, data: bytes) -> bool:
        store.put(path, [data])
        return True

    monkeypatch.setattr(stores.DirectoryObjects, "put_if_absent", put)
    finding = checks.check_objects(a_cluster(tmp_path, "etcd://127.0.0.1:9"))
    assert finding.grade == Grade.FAIL
    assert "If-None-Match" in str(finding.advice)


def test_a_slow_store_and_one_with_another_clock_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = a_cluster(tmp_path, "etcd://127.0.0.1:9")
    monkeypatch.setattr(checks, "SLOW_OBJECTS_MS", 0.0)
    assert "archived" in str(checks.check_objects(settings).advice)
    monkeypatch.setattr(checks, "CLOCK_SECONDS_MAX", -1.0)
    assert "clock" in str(checks.check_objects(settings).advice)

"""The HTTP API against a real broker: what it stores, shows and refuses."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pyarrow as pa
import pytest

from sulina.broker.broker import Broker
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.core.records.routing import partition_of
from sulina.listeners.http import HttpApp, make_app
from sulina.listeners.http_limits import HttpLimits
from sulina.storage.partition_log import PartitionLog
from sulina.types import TopicName
from tests.listeners.conftest import no_websocket

TOPIC = "/v1/topics/default/orders"
RECORDS = f"{TOPIC}/records"
READ = f"{TOPIC}/partitions/0/records"
BATCH = "application/vnd.sulina.batch"
ARROW = "application/vnd.apache.arrow.stream"


async def put(http: httpx.AsyncClient, path: str = TOPIC, **body: Any) -> Any:
    answer = await http.put(path, json=body)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def publish(http: httpx.AsyncClient, *values: str, **fields: Any) -> Any:
    answer = await http.post(RECORDS, json={"records": [{"value": value} for value in values], **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int, code: str) -> Any:
    """The problem that an answer is."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    problem = answer.json()
    assert problem["code"] == code
    assert problem["status"] == status
    assert problem["detail"]
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    return problem


# Records


async def test_what_is_published_is_read_l16(http: httpx.AsyncClient) -> None:
    await put(http)
    record = {"key": "42", "value": "hello", "headers": {"a": "b"}, "timestamp": 1000}
    answer = await http.post(RECORDS, json={"records": [record, {"value": None}]})
    assert answer.json() == {"partition": 0, "base_offset": 0, "count": 2, "version": 1, "ack": "local"}
    found = (await http.get(READ)).json()
    stored = record | {"headers": {"sulina-serializer": "1", "a": "b"}}
    assert found["records"][0] == {"offset": 0, **stored}
    assert {**found["records"][1], "timestamp": 0} == {
        "offset": 1, "timestamp": 0, "key": None, "value": None, "headers": {},
    }  # fmt: skip
    assert (found["next_offset"], found["version"], found["end_offset"]) == (2, 1, 2)


async def test_a_raw_value_has_its_key_in_a_header(http: httpx.AsyncClient) -> None:
    await put(http)
    headers = {"content-type": "application/octet-stream", "sulina-key": "k", "sulina-txn-id": "once"}
    for _ in range(2):  # L13: the second adds nothing
        answer = await http.post(RECORDS, content=b"\xff\x00", headers=headers)
        assert answer.json()["base_offset"] == 0
    [record] = (await http.get(READ)).json()["records"]
    assert (record["key"], record["value_b64"]) == ("k", "/wA=")


async def test_encoded_batches_are_stored_as_they_are(http: httpx.AsyncClient) -> None:
    await put(http)
    data = encode([StoredRecord(b"a", timestamp_ms=1), StoredRecord(b"b", timestamp_ms=2)]) + encode(
        [StoredRecord(b"c", timestamp_ms=3)]
    )
    answer = await http.post(RECORDS, content=bytes(data), headers={"content-type": BATCH})
    assert answer.json()["count"] == 3
    read = await http.get(READ, headers={"accept": BATCH})
    assert read.headers["content-type"] == BATCH
    assert [read.headers[f"sulina-{name}"] for name in ("offset", "next-offset", "version", "end-offset")] == [
        "0", "3", "1", "3",
    ]  # fmt: skip
    assert [record.value for record in decode(read.content)] == [b"a", b"b"]
    assert refused(await http.post(RECORDS, content=b"", headers={"content-type": BATCH}), 422, "invalid_input")
    broken = bytes(data[:-1]) + b"!"
    refused(await http.post(RECORDS, content=broken, headers={"content-type": BATCH}), 422, "corrupt_batch")


async def test_arrow_has_the_records_from_the_offset_on(http: httpx.AsyncClient) -> None:
    await put(http)
    await publish(http, *(f"v{n}" for n in range(10)))
    answer = await http.get(READ, params={"offset": 4, "max_records": 3}, headers={"accept": ARROW})
    assert answer.headers["content-type"] == ARROW
    assert answer.headers["sulina-next-offset"] == "7"
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.column("offset").to_pylist() == [4, 5, 6]
    assert table.column("value").to_pylist() == [b"v4", b"v5", b"v6"]
    empty = await http.get(READ, params={"offset": 10}, headers={"accept": ARROW})
    assert (pa.ipc.open_stream(empty.content).read_all().num_rows, empty.headers["sulina-next-offset"]) == (0, "10")


async def test_reading_goes_on_at_next_offset(http: httpx.AsyncClient) -> None:
    await put(http)
    expected = [f"v{n}" for n in range(25)]
    for start in range(0, 25, 5):
        await publish(http, *expected[start : start + 5])
    found: list[str] = []
    offset = 0
    while True:
        page = (await http.get(READ, params={"offset": offset, "max_records": 4, "max_bytes": 1})).json()
        found += [record["value"] for record in page["records"]]
        if page["next_offset"] == page["end_offset"]:
            break
        offset = page["next_offset"]
    assert found == expected


async def test_a_read_at_a_version_is_a_snapshot_l14(http: httpx.AsyncClient) -> None:
    await put(http)
    first = await publish(http, "a")
    await publish(http, "b")
    page = (await http.get(READ, params={"version": first["version"]})).json()
    assert ([record["value"] for record in page["records"]], page["end_offset"]) == (["a"], 1)


async def test_min_version_waits_and_then_says_not_yet_l14(http: httpx.AsyncClient) -> None:
    await put(http)
    await publish(http, "a")
    answer = await http.get(READ, params={"min_version": 2, "wait_ms": 1})
    assert refused(answer, 503, "not_yet")["retryable"]
    waiting = asyncio.create_task(http.get(READ, params={"min_version": 2, "wait_ms": 30000}))
    await asyncio.sleep(0)
    await publish(http, "b")
    assert len((await waiting).json()["records"]) == 2


async def test_min_offset_waits_and_then_says_not_yet_l14(http: httpx.AsyncClient) -> None:
    await put(http)
    await publish(http, "a")
    assert len((await http.get(READ, params={"min_offset": 0})).json()["records"]) == 1, "it is readable"
    problem = refused(await http.get(READ, params={"min_offset": 1, "wait_ms": 1}), 503, "not_yet")
    assert problem["retryable"]
    assert "offset 1 is not there" in problem["detail"]
    waiting = asyncio.create_task(http.get(READ, params={"min_offset": 2, "wait_ms": 30000}))
    await publish(http, "b")
    await publish(http, "c")
    assert [record["value"] for record in (await waiting).json()["records"]] == ["a", "b", "c"]
    both = {"min_offset": 2, "min_version": 99, "wait_ms": 1}
    assert "version 99 is not there" in refused(await http.get(READ, params=both), 503, "not_yet")["detail"]


async def test_a_reader_waits_for_the_next_record(http: httpx.AsyncClient) -> None:
    await put(http)
    await publish(http, "a")
    waiting = asyncio.create_task(http.get(READ, params={"offset": 1, "wait_ms": 30000}))
    await asyncio.sleep(0)
    await publish(http, "b")
    assert [record["value"] for record in (await waiting).json()["records"]] == ["b"]
    assert (await http.get(READ, params={"offset": 2, "wait_ms": 1})).json()["records"] == []


async def test_of_two_writers_at_a_version_one_wins_l3(http: httpx.AsyncClient) -> None:
    await put(http)
    version = (await publish(http, "a"))["version"]
    body = {"records": [{"value": "b"}], "expected_version": version}
    answers = await asyncio.gather(*(http.post(RECORDS, json=body) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
    lost = next(answer for answer in answers if answer.status_code == 409)
    assert refused(lost, 409, "version_conflict")["current"] == version + 1


async def test_keys_choose_the_partition(http: httpx.AsyncClient) -> None:
    await put(http, partitions=8)
    seen = {
        (await http.post(RECORDS, json={"records": [{"key": "same", "value": "v"}]})).json()["partition"]
        for _ in range(3)
    }
    assert len(seen) == 1
    many = [{"key": str(n), "value": "v"} for n in range(50)]
    refused(await http.post(RECORDS, json={"records": many}), 422, "keys_span_partitions")
    answer = await http.post(f"{TOPIC}/partitions/3/records", json={"records": many})
    assert answer.json()["partition"] == 3


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["small", "large"])
async def test_keys_are_looked_at_once(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    await put(http, partitions=8)
    expected = partition_of(b"same", 8)
    decoding = "sulina.broker.topic.decode_rows"
    monkeypatch.setattr(decoding, lambda *_, **__: pytest.fail("the topic had to decode what was just encoded"))
    record = {"key": "same", "value": "v" * size}
    spanning = [{**record, "key": str(n)} for n in range(20)]
    for more in ({}, {"timestamp": 1}):
        answer = await http.post(RECORDS, json={"records": [record | more, {"value": "v"}]})
        assert answer.json()["partition"] == expected
        answer = await http.post(RECORDS, json={"records": [item | more for item in spanning]})
        assert refused(answer, 422, "keys_span_partitions")["topic"] == "/default/orders"
    headers = {"content-type": "application/octet-stream", "sulina-key": "same"}
    assert (await http.post(RECORDS, content=b"v" * size, headers=headers)).json()["partition"] == expected


async def test_without_keys_partitions_take_turns(http: httpx.AsyncClient) -> None:
    await put(http, partitions=3)
    assert {(await publish(http, "v"))["partition"] for _ in range(3)} == {0, 1, 2}
    assert len({(await publish(http, "v", txn_id="once"))["partition"] for _ in range(3)}) == 1
    as_bytes = {"content-type": "application/octet-stream"}
    assert {(await http.post(RECORDS, content=b"v", headers=as_bytes)).json()["partition"] for _ in range(3)} == {
        0,
        1,
        2,
    }


async def test_headers_say_for_any_body_what_json_says_in_it(http: httpx.AsyncClient) -> None:
    await put(http)
    body = {"records": [{"value": "v"}]}
    headers = {"sulina-txn-id": "t", "sulina-expected-version": "9"}
    refused(await http.post(RECORDS, json=body, headers=headers), 409, "version_conflict")
    refused(await http.post(RECORDS, json={**body, "txn_id": "u"}, headers=headers), 422, "invalid_input")
    refused(await http.post(RECORDS, json=body, headers={"sulina-expected-version": "x"}), 400, "invalid_parameter")
    refused(await http.post(RECORDS, json=body, headers={b"sulina-txn-id": b"\xff"}), 400, "invalid_parameter")
    refused(await http.post(RECORDS, json=body, headers={"sulina-schema": "other"}), 409, "schema_conflict")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        (f"application/json;q=0.5, {ARROW}", ARROW),
        (f"{BATCH};q=0.1, text/html", BATCH),
        ("text/html, application/xhtml+xml, */*;q=0.8", "application/json"),
        ("application/json;q=0, */*", BATCH),
        (f"*/*, application/json;q=0, {BATCH};q=0", ARROW),
    ],
)
async def test_accept_chooses_the_form(http: httpx.AsyncClient, accept: str, kind: str) -> None:
    await put(http)
    await publish(http, "a")
    assert (await http.get(READ, headers={"accept": accept})).headers["content-type"] == kind


async def test_what_is_wrong_with_a_publish_is_said(http: httpx.AsyncClient) -> None:
    refused(await http.post(RECORDS, json={"records": [{"value": "v"}]}), 404, "topic_not_found")
    await put(http)
    as_json = {"content-type": "application/json"}
    refused(await http.post(RECORDS, content=b"{oops", headers=as_json), 400, "malformed_body")
    refused(await http.post(RECORDS, content=b'{"a":' * 10**5, headers=as_json), 422, "invalid_input")
    refused(await http.post(RECORDS, json={"records": []}), 422, "invalid_input")
    refused(await http.post(RECORDS, data={"records": "x"}), 415, "unsupported_media_type")
    refused(await http.post(RECORDS, content=b"x"), 415, "unsupported_media_type")
    refused(await http.post(f"{RECORDS}?x=1", json={"records": [{"value": "v"}]}), 400, "invalid_parameter")
    refused(
        await http.post(f"{TOPIC}/partitions/1/records", json={"records": [{"value": "v"}]}), 404, "partition_not_found"
    )
    refused(
        await http.post(f"{TOPIC}/partitions/x/records", json={"records": [{"value": "v"}]}), 400, "invalid_parameter"
    )
    assert (await http.get(READ)).json()["records"] == []


async def test_what_is_wrong_with_a_read_is_said(http: httpx.AsyncClient) -> None:
    refused(await http.get(READ), 404, "topic_not_found")
    await put(http)
    await publish(http, "a")
    assert refused(await http.get(READ, params={"offset": 5}), 416, "offset_out_of_range")["end"] == 1
    refused(await http.get(READ, params={"offset": "x"}), 400, "invalid_parameter")
    refused(await http.get(READ, params={"max_bytes": 10**9}), 400, "invalid_parameter")
    refused(await http.get(READ, params={"wait_ms": 10**6}), 400, "invalid_parameter")
    refused(await http.get(READ, headers={"accept": "text/html"}), 406, "not_acceptable")
    refused(await http.get(READ, headers={"accept": "application/json;q=0"}), 406, "not_acceptable")
    allow = refused(await http.delete(READ), 405, "method_not_allowed")
    assert "GET, POST" in allow["detail"]
    answer = await http.get(RECORDS)
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


async def test_large_publishes_and_reads_are_the_same_records(http: httpx.AsyncClient) -> None:
    await put(http)
    values = [f"{n}-" + "x" * 200 for n in range(3000)]
    assert (await publish(http, *values))["count"] == 3000
    page = (await http.get(READ)).json()
    assert [record["value"] for record in page["records"]] == values


async def test_a_best_effort_topic_has_nothing_to_read(http: httpx.AsyncClient) -> None:
    await put(http, delivery="non_reliable")
    refused(await http.post(RECORDS, json={"records": [{"value": "v"}]}), 409, "no_subscribers")
    refused(await http.get(READ, params={"offset": 0}), 422, "not_reliable")


# What exists


async def test_namespaces_come_and_go(http: httpx.AsyncClient) -> None:
    made = await http.put("/v1/namespaces/shop", json={"retention_seconds": 60})
    assert (made.status_code, made.json()["policy"]) == (201, {"retention_seconds": 60.0})
    assert (await http.put("/v1/namespaces/shop")).status_code == 200
    names = [info["namespace"] for info in (await http.get("/v1/namespaces")).json()["namespaces"]]
    assert names == ["default", "shop"]
    await put(http, "/v1/topics/shop/cart")
    refused(await http.delete("/v1/namespaces/shop"), 409, "namespace_not_empty")
    assert (await http.delete("/v1/topics/shop/cart")).status_code == 204
    assert (await http.delete("/v1/namespaces/shop")).status_code == 204
    refused(await http.get("/v1/namespaces/shop"), 404, "namespace_not_found")
    refused(await http.put("/v1/topics/shop/cart"), 404, "namespace_not_found")


async def test_topics_are_listed_by_pages(http: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        assert (await http.put(f"/v1/topics/default/{name}")).status_code == 201
    first = (await http.get("/v1/topics", params={"limit": 2})).json()
    assert ([topic["topic"] for topic in first["topics"]], first["next"]) == (
        ["/default/a", "/default/b"],
        "/default/b",
    )
    rest = (await http.get("/v1/topics", params={"limit": 2, "after": first["next"], "namespace": "default"})).json()
    assert ([topic["topic"] for topic in rest["topics"]], rest["next"]) == (["/default/c"], None)
    refused(await http.get("/v1/topics", params={"limit": 0}), 400, "invalid_parameter")
    refused(await http.get("/v1/topics", params={"namespace": "none"}), 404, "namespace_not_found")
    refused(await http.get("/v1/topics", params={"namespace": ".."}), 422, "invalid_name")


async def test_a_topic_changes_only_by_the_rules_u11(http: httpx.AsyncClient) -> None:
    await put(http, partitions=2)
    assert (await http.put(TOPIC, json={"partitions": 2, "policy": {"deliveries_max": 3}})).status_code == 200
    assert (await http.get(TOPIC)).json()["policy"]["deliveries_max"] == 3
    refused(await http.put(TOPIC, json={"partitions": 3}), 409, "already_exists")
    await publish(http, "{}")
    other = {"partitions": 2, "schema": {"kind": "json", "definition": {"type": "object"}}}
    refused(await http.put(TOPIC, json=other), 409, "schema_conflict")


async def test_settings_of_another_shape_are_refused(http: httpx.AsyncClient) -> None:
    as_json = {"content-type": "application/json"}
    refused(await http.put(TOPIC, content=b"{", headers=as_json), 400, "malformed_body")
    refused(await http.put(TOPIC, content=b"{}", headers={"content-type": "text/plain"}), 415, "unsupported_media_type")
    refused(await http.put(TOPIC, json={"partitons": 2}), 422, "invalid_input")
    refused(await http.put(TOPIC, json={"partitions": 0}), 422, "invalid_input")
    refused(await http.put(TOPIC, json={"policy": {"ack": "replicated"}}), 422, "invalid_settings")
    deep: Any = 1
    for _ in range(200):
        deep = {"not": deep}
    refused(await http.put(TOPIC, json={"schema": {"kind": "json", "definition": deep}}), 422, "invalid_input")
    refused(await http.get(TOPIC), 404, "topic_not_found")


async def test_a_partition_shows_its_log_and_its_commits(http: httpx.AsyncClient) -> None:
    await put(http)
    for value in ("a", "b", "c"):
        await publish(http, value, txn_id=f"t-{value}")
    info = (await http.get(f"{TOPIC}/partitions/0")).json()
    assert (info["start_offset"], info["end_offset"], info["version"]) == (0, 3, 3)
    feed = (await http.get(f"{TOPIC}/partitions/0/commits")).json()
    assert [commit["version"] for commit in feed["commits"]] == [0, 1, 2, 3]
    assert feed["next_version"] == 4
    some = (await http.get(f"{TOPIC}/partitions/0/commits", params={"start": 1, "end": 3})).json()
    assert [commit["operations"][0]["txn_id"] for commit in some["commits"]] == ["t-a", "t-b"]
    assert (await http.get(f"{TOPIC}/partitions/0/commits", params={"start": 9})).json() == {
        "commits": [], "next_version": 9,
    }  # fmt: skip
    refused(await http.get(f"{TOPIC}/partitions/0/commits", params={"start": 3, "end": 1}), 422, "invalid_input")
    refused(await http.get(f"{TOPIC}/partitions/1/commits"), 404, "partition_not_found")


async def test_subscriptions_are_made_moved_and_deleted_p12(http: httpx.AsyncClient) -> None:
    await put(http, partitions=2)
    await http.post(f"{TOPIC}/partitions/1/records", json={"records": [{"value": "a"}, {"value": "b"}]})
    path = f"{TOPIC}/subscriptions/billing"
    made = await http.put(path, json={"mode": "shared", "start": "earliest"})
    assert (made.status_code, made.json()["lag"]) == (201, 2)
    assert (await http.put(path, json={"mode": "shared"})).status_code == 200
    refused(await http.put(path, json={"mode": "exclusive"}), 409, "already_exists")
    moved = (await http.post(f"{path}/seek", json={"position": "offset:1", "partition": 1})).json()
    assert [cursor["offset"] for cursor in moved["cursors"]] == [0, 1]
    assert (await http.post(f"{path}/seek", json={"position": "latest"})).json()["lag"] == 0
    listed = (await http.get(f"{TOPIC}/subscriptions")).json()["subscriptions"]
    assert listed == [(await http.get(path)).json()]
    for body in ({"position": "latest"}, {"partition": 0}, {"start": "x"}):
        assert (await http.put(path, json=body)).status_code == 422, body
    for wrong in ({"position": "never"}, {"position": "latest", "mode": "shared"}, {"partition": 0}, {}, None):
        assert (await http.post(f"{path}/seek", json=wrong)).status_code == 422, wrong
    none = f"{TOPIC}/subscriptions/none/seek"
    refused(await http.post(none, json={"position": "latest"}), 404, "subscription_not_found")
    assert (await http.delete(path)).status_code == 204
    refused(await http.get(path), 404, "subscription_not_found")


@pytest.mark.parametrize("name", ["%2e%2e", "..%2f..", "a%2fb", "%00", ".a", "a b", "%ff"])
async def test_no_place_for_a_name_takes_a_path(http: httpx.AsyncClient, name: str) -> None:
    await put(http)
    for path in (
        f"/v1/namespaces/{name}", f"/v1/topics/{name}/x", f"/v1/topics/default/{name}",
        f"{TOPIC}/subscriptions/{name}",
    ):  # fmt: skip
        for method in ("PUT", "GET", "DELETE"):
            refused(await http.request(method, path), 422, "invalid_name")
    for path in (f"/v1/topics/{name}/x/records", f"/v1/topics/default/{name}/partitions/0/records"):
        refused(await http.post(path, json={"records": [{"value": "v"}]}), 422, "invalid_name")


# The node


async def test_the_front_page_says_where_to_go(http: httpx.AsyncClient) -> None:
    text = await http.get("/")
    assert text.headers["content-type"].startswith("text/plain")
    assert "http://node:8080/docs" in text.text
    page = await http.get("/", headers={"accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html")
    assert '<a href="/docs">' in page.text


async def test_pages_load_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    for path in ("/", "/docs"):
        page = await http.get(path, headers={"accept": "text/html"})
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for word in ('src="h', 'href="h', 'src="//', "@import", " url(", "http://cdn", "https://"):
            assert word not in page.text, f"{path} has {word}"


async def test_metrics_that_take_long_hold_up_nobody(
    http: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_end, busy = threading.Semaphore(0), threading.Event(), threading.Lock()

    def render() -> bytes:
        assert busy.acquire(blocking=False), "two at once"
        has_begun.release()
        assert may_end.wait(20)
        busy.release()
        return b"metrics"

    monkeypatch.setattr(broker.metrics, "render", render)
    asked = [asyncio.create_task(http.get("/metrics")) for _ in range(3)]
    assert await asyncio.to_thread(has_begun.acquire, timeout=20)
    assert (await http.get("/health")).status_code == 200
    may_end.set()
    assert [(await answer).text for answer in asked] == ["metrics"] * 3


async def test_health_readiness_and_metrics(http: httpx.AsyncClient, broker: Broker) -> None:
    assert (await http.get("/health")).json() == {"status": "ok"}
    assert (await http.get("/ready")).json() == {"status": "ok"}
    await put(http)
    await publish(http, "a", "b")
    refused(await http.get("/v1/topics/default/none"), 404, "topic_not_found")
    metrics = await http.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'sulina_published_records_total{topic="/default/orders"} 2.0' in metrics.text
    assert 'sulina_errors_total{code="topic_not_found"} 1.0' in metrics.text
    assert (await http.get("/v1/node")).json()["version"] == "1.2.3"
    broker.drain()
    refused(await http.get("/ready"), 503, "not_serving")
    refused(await http.post(RECORDS, json={"records": [{"value": "v"}]}), 503, "not_serving")
    assert (await http.get("/health")).status_code == 200


async def test_other_paths_and_methods(http: httpx.AsyncClient) -> None:
    refused(await http.get("/v1/nothing"), 404, "no_such_path")
    refused(await http.get("/v1/topics/"), 404, "no_such_path")
    answer = await http.patch(TOPIC)
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "DELETE, GET, PUT"
    assert (await http.head("/health")).status_code == 200


async def test_an_exception_is_an_answer_with_an_id(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(http)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the secret")

    monkeypatch.setattr(PartitionLog, "append_nowait", broken)
    answer = await http.post(RECORDS, json={"records": [{"value": "v"}]})
    assert refused(answer, 500, "internal")["id"]
    assert "secret" not in answer.text


# Bounds


async def test_bodies_are_bounded_with_and_without_a_length(broker: Broker) -> None:
    limits = HttpLimits(body_bytes_max=1000, linger_seconds=0.01)
    app = make_app(broker, limits, websocket=no_websocket)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as http:
        await put(http)

        async def chunks() -> Any:
            for _ in range(20):
                yield b"x" * 100

        headers = {"content-type": "application/octet-stream"}
        for path in (RECORDS, TOPIC):
            method = "POST" if path == RECORDS else "PUT"
            declared = await http.request(method, path, content=b"x" * 1001, headers=headers)
            assert refused(declared, 413, "body_too_large")["limit_bytes"] == 1000
            streamed = await http.request(method, path, content=chunks(), headers=headers)
            refused(streamed, 413, "body_too_large")
        assert (await http.post(RECORDS, content=b"x" * 1000, headers=headers)).status_code == 200


async def test_all_bodies_together_are_bounded(broker: Broker) -> None:
    limits = HttpLimits(small_body_bytes=100, in_flight_body_bytes_max=1000, linger_seconds=0.01)
    app = make_app(broker, limits, websocket=no_websocket)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as http:
        await put(http)
        going = asyncio.Event()

        async def slow(size: int) -> Any:
            yield b"x" * size
            yield b"x"
            await going.wait()
            yield b"x"

        headers = {"content-type": "application/octet-stream"}
        first = asyncio.create_task(http.post(RECORDS, content=slow(900), headers=headers))
        for _ in range(5):
            await asyncio.sleep(0)
        second = await http.post(RECORDS, content=slow(900), headers=headers)
        refused(second, 429, "busy")
        small = await http.post(RECORDS, content=b"x" * 50, headers=headers)
        assert small.status_code == 200, "a small body needs no room"
        going.set()
        assert (await first).status_code == 200
        assert (await http.post(RECORDS, content=slow(900), headers=headers)).status_code == 200, (
            "room was not given back"
        )


async def test_a_body_that_is_refused_takes_no_room_while_the_rest_of_it_comes(broker: Broker) -> None:
    limits = HttpLimits(small_body_bytes=100, in_flight_body_bytes_max=1000, linger_seconds=60)
    app = make_app(broker, limits, websocket=no_websocket)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as http:
        await put(http)
        is_refused, going = asyncio.Event(), asyncio.Event()
        headers = {"content-type": "application/octet-stream"}

        async def too_much() -> Any:
            yield b"x" * 500
            yield b"x" * 400
            yield b"x" * 200  # from here on it is read and dropped
            is_refused.set()
            await going.wait()

        async def most() -> Any:
            yield b"x" * 500
            yield b"x" * 400

        first = asyncio.create_task(http.post(RECORDS, content=too_much(), headers=headers))
        await is_refused.wait()
        assert (await http.post(RECORDS, content=most(), headers=headers)).status_code == 200
        going.set()
        refused(await first, 429, "busy")


async def test_reads_together_are_bounded(broker: Broker) -> None:
    app = make_app(broker, HttpLimits(in_flight_read_bytes_max=1000), websocket=no_websocket)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as http:
        await put(http)
        await publish(http, "x" * 2000)
        refused(await http.get(READ), 429, "busy")


async def test_a_disconnect_in_the_middle_of_a_body_is_no_error(app: HttpApp, broker: Broker) -> None:
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": RECORDS, "raw_path": RECORDS.encode(), "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    await app(scope, receive, send)
    assert sent == []


async def test_who_waits_is_told_when_the_node_stops(
    http: httpx.AsyncClient, app: HttpApp, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(http)
    await publish(http, "a")
    fetch, asked = broker.fetch, asyncio.Event()

    async def fetch_and_tell(*arguments: Any, **more: Any) -> Any:
        asked.set()
        return await fetch(*arguments, **more)

    monkeypatch.setattr(broker, "fetch", fetch_and_tell)
    waiting = asyncio.create_task(http.get(READ, params={"offset": 1, "wait_ms": 30000}))
    await asked.wait()
    app.stop_waiting()
    refused(await waiting, 503, "not_serving")


async def test_events_are_streamed_as_they_happen(app: HttpApp, broker: Broker) -> None:
    sent: asyncio.Queue[Any] = asyncio.Queue()
    gone = asyncio.Event()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http", "method": "GET", "path": "/v1/events", "raw_path": b"/v1/events", "query_string": b"",
        "headers": [],
    }  # fmt: skip
    serving = asyncio.create_task(app(scope, receive, sent.put))
    assert (await sent.get())["headers"][0] == (b"content-type", b"text/event-stream; charset=utf-8")
    assert (await sent.get())["body"].startswith(b":")
    broker.events.emit("topic_created", TopicName("default", "orders"), partitions=1)
    line = (await sent.get())["body"]
    assert line.startswith(b"data: ")
    assert line.endswith(b"\n\n")
    event = json.loads(line[6:])
    assert (event["type"], event["topic"], event["fields"]) == ("topic_created", "/default/orders", {"partitions": 1})
    gone.set()
    await serving
    assert not broker.events.listeners

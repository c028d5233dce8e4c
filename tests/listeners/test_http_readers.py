"""S7 by HTTP: registered readers are put, shown, listed and deleted, and what is wrong is said."""

from typing import Any

import httpx
import pytest

from sulina.broker.broker import Broker
from sulina.errors import InvalidName, InvalidSettings
from sulina.listeners.calls import call
from sulina.wire.messages import ReaderInfo, ReaderPage
from tests.listeners.test_http import publish, put, refused

READER = "/v1/readers/nightly/default/orders"


async def test_s7_a_reader_is_put_shown_listed_and_deleted(http: httpx.AsyncClient) -> None:
    await put(http, partitions=1)
    await publish(http, *"abcd")
    body = {"positions": {"0": 1}, "expires_seconds": 60, "kind": "spark", "description": "by day"}
    made = await http.put(READER, json=body)
    assert made.status_code == 201
    shown = made.json()
    assert {name: shown[name] for name in ("reader", "topic", "kind", "description", "expires_seconds", "lag")} == {
        "reader": "nightly", "topic": "/default/orders", "kind": "spark", "description": "by day",
        "expires_seconds": 60.0, "lag": 3,
    }  # fmt: skip
    position = dict(*shown["positions"])
    assert position.pop("updated_ms") == shown["updated_ms"]
    assert position == {"partition": 0, "offset": 1, "start_offset": 0, "end_offset": 4, "lag": 3}
    assert (await http.get(READER)).json() == shown
    assert (await http.put(READER, json={"positions": {"0": 4}})).status_code == 200
    listed = (await http.get("/v1/readers", params={"topic": "/default/orders", "limit": 5})).json()
    assert ([info["lag"] for info in listed["readers"]], listed["next"]) == ([0], None)
    assert (await http.delete(READER)).status_code == 204
    refused(await http.get(READER), 404, "reader_not_found")
    refused(await http.delete(READER), 404, "reader_not_found")


async def test_s7_readers_come_by_pages(http: httpx.AsyncClient) -> None:
    await put(http)
    for name in "abc":
        await http.put(f"/v1/readers/{name}/default/orders", json={"positions": {"0": 0}})
    page = (await http.get("/v1/readers?limit=2")).json()
    assert ([info["reader"] for info in page["readers"]], page["next"]) == (["a", "b"], "b/default/orders")
    page = (await http.get("/v1/readers", params={"limit": 2, "after": page["next"]})).json()
    assert ([info["reader"] for info in page["readers"]], page["next"]) == (["c"], None)


async def test_s7_a_position_goes_back_only_by_force(http: httpx.AsyncClient) -> None:
    await put(http)
    await http.put(READER, json={"positions": {"0": 3}})
    problem = refused(await http.put(READER, json={"positions": {"0": 2}}), 409, "reader_ahead")
    assert (problem["current"], problem["offset"], problem["partition"]) == (3, 2, 0)
    assert (await http.put(READER, json={"positions": {"0": 2}, "force": True})).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {}, {"positions": {}}, {"positions": {"0": -1}}, {"positions": {"-1": 0}}, {"positions": {"x": 0}},
        {"positions": {"00": 0}}, {"positions": {"0": "1"}}, {"positions": [1]}, {"positions": {"0": 1 << 63}},
        {"positions": {"1024": 0}}, {"positions": {"0": 1}, "expires_seconds": 0},
        {"positions": {"0": 1}, "expires_seconds": 365 * 24 * 3600 + 1},
        {"positions": {"0": 1}, "description": "x" * 201}, {"positions": {"0": 1}, "kind": "x" * 201},
        {"positions": {"0": 1}, "force": "yes"}, {"positions": {"0": 1}, "offset": 1},
    ],
)  # fmt: skip
async def test_s7_what_is_outside_the_rules_changes_nothing(http: httpx.AsyncClient, body: Any) -> None:
    await put(http)
    refused(await http.put(READER, json=body), 422, "invalid_input")
    assert (await http.get("/v1/readers")).json() == {"readers": [], "next": None}


async def test_s7_names_topics_and_partitions_are_checked(http: httpx.AsyncClient) -> None:
    body = {"positions": {"0": 0}}
    refused(await http.put(READER, json=body), 404, "topic_not_found")
    await put(http)
    refused(await http.put(READER), 422, "invalid_input")
    refused(await http.put(READER, json={"positions": {"1": 0}}), 404, "partition_not_found")
    for name in ("%2e%2e", "..%2fx", "a b", "x" * 201):
        refused(await http.put(f"/v1/readers/{name}/default/orders", json=body), 422, "invalid_name")
    refused(await http.get("/v1/readers?topic=orders"), 422, "invalid_name")
    refused(await http.get("/v1/readers?topic=/default/nothing"), 404, "topic_not_found")
    refused(await http.get("/v1/readers?limit=1001"), 400, "invalid_parameter")
    refused(await http.get("/v1/readers?namespace=default"), 400, "invalid_parameter")
    refused(await http.get(f"{READER}?force=true"), 400, "invalid_parameter")


async def test_s7_a_session_asks_by_name(http: httpx.AsyncClient, broker: Broker) -> None:
    await put(http)
    asked = {"reader": "nightly", "topic": "/default/orders"}
    made = await call(broker, "register_reader", {**asked, "settings": {"positions": {0: 4}}})
    shown = await call(broker, "reader", asked)
    assert isinstance(shown, ReaderInfo)
    assert shown == made
    page = await call(broker, "readers", {"topic": "/default/orders", "limit": 10})
    assert page == ReaderPage(readers=[made], next=None)
    assert await call(broker, "readers", {}) == page
    for method, arguments, error in (
        ("register_reader", asked, InvalidSettings),
        ("register_reader", {**asked, "settings": {"positions": {}}}, InvalidSettings),
        ("register_reader", {**asked, "settings": {"positions": {0: -1}}}, InvalidSettings),
        ("reader", {"reader": "../x", "topic": "/default/orders"}, InvalidName),
        ("readers", {"topic": "orders"}, InvalidName),
        ("delete_reader", {"reader": "nightly"}, InvalidSettings),
    ):
        with pytest.raises(error):
            await call(broker, method, arguments)
    await call(broker, "delete_reader", asked)
    assert (await call(broker, "readers", {})).readers == []

"""What a session asks by name about a cluster."""

from typing import Any

import pytest

from sulina.broker.broker import Broker
from sulina.errors import InvalidName, InvalidSettings
from sulina.listeners.calls import call
from sulina.types import TopicName
from tests.listeners.test_http_cluster import MOVE, Said

NAME = TopicName("default", "orders")


@pytest.mark.parametrize(
    ("method", "arguments", "asked"),
    [
        ("lookup", {"topic": "/default/orders"}, ("lookup", NAME)),
        ("cluster", {}, ("cluster",)),
        (
            "unload",
            {"topic": "/default/orders", "to": "b2", "partition": 1, "force": True},
            ("unload", NAME, {"force": True, "to": "b2", "partition": 1, "give_up": False}),
        ),
        (
            "unload",
            {"topic": "/default/orders", "give_up": True},
            ("unload", NAME, {"force": False, "to": None, "partition": None, "give_up": True}),
        ),
        ("unloads", {"topic": "/default/orders"}, ("unloads", NAME)),
        ("drain_broker", {"broker_id": "b2"}, ("drain_broker", "b2")),
        ("activate_broker", {"broker_id": "b2"}, ("activate_broker", "b2")),
        ("rebalance", {}, ("rebalance",)),
    ],
)
async def test_a_session_asks_about_the_cluster_f5(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, method: str, arguments: dict[str, Any], asked: tuple[Any, ...]
) -> None:
    """F5: look up, list, unload, drain, rebalance, over the connection that clients have."""
    told = Said(broker, monkeypatch, {method: [MOVE]})
    assert await call(broker, method, arguments) == [MOVE]
    assert told.asked == [asked]


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("unload", {"topic": "/default/orders", "to": "../b2"}, InvalidName),
        ("unload", {"topic": "/default/orders", "to": ""}, InvalidName),
        ("unload", {"topic": "orders"}, InvalidName),
        ("unload", {"topic": "/default/orders", "now": True}, InvalidSettings),
        ("drain_broker", {"broker_id": "a/b"}, InvalidName),
        ("activate_broker", {}, InvalidSettings),
    ],
)
async def test_arguments_of_another_shape_reach_nobody(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, method: str, arguments: dict[str, Any], error: type[Exception]
) -> None:
    told = Said(broker, monkeypatch, {method: None})
    with pytest.raises(error):
        await call(broker, method, arguments)
    assert told.asked == []

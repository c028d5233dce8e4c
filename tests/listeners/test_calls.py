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
        ("placement", {"topic": "/default/orders"}, ("lookup", NAME)),
        ("cluster", {}, ("cluster",)),
        (
            "move_topic",
            {"topic": "/default/orders", "to": "b2", "partition": 1, "force": True},
            ("unload", NAME, {"force": True, "to": "b2", "partition": 1, "give_up": False}),
        ),
        (
            "move_topic",
            {"topic": "/default/orders", "give_up": True},
            ("unload", NAME, {"force": False, "to": None, "partition": None, "give_up": True}),
        ),
        ("moves", {"topic": "/default/orders"}, ("unloads", NAME)),
        ("drain_broker", {"broker_id": "b2"}, ("drain_broker", "b2")),
        ("activate_broker", {"broker_id": "b2"}, ("activate_broker", "b2")),
        ("rebalance", {}, ("rebalance",)),
    ],
)
async def test_a_session_asks_about_the_cluster_f5(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, method: str, arguments: dict[str, Any], asked: tuple[Any, ...]
) -> None:
    """F5: look up, list, unload, drain, rebalance, over the connection that clients have."""
    told = Said(broker, monkeypatch, {asked[0]: [MOVE]})
    answer = await call(broker, method, arguments)
    assert getattr(answer, "moves", answer) == [MOVE]
    assert told.asked == [asked]


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("move_topic", {"topic": "/default/orders", "to": "../b2"}, InvalidName),
        ("move_topic", {"topic": "/default/orders", "to": ""}, InvalidName),
        ("move_topic", {"topic": "orders"}, InvalidName),
        ("move_topic", {"topic": "/default/orders", "now": True}, InvalidSettings),
        ("drain_broker", {"broker_id": "a/b"}, InvalidName),
        ("activate_broker", {}, InvalidSettings),
    ],
)
async def test_arguments_of_another_shape_reach_nobody(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, method: str, arguments: dict[str, Any], error: type[Exception]
) -> None:
    told = Said(broker, monkeypatch, dict.fromkeys(("unload", "drain_broker", "activate_broker")))
    with pytest.raises(error):
        await call(broker, method, arguments)
    assert told.asked == []

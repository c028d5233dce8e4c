"""A cluster that plays a part: what commands ask of a client, answered by the script of a test."""

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import msgspec
import pytest

from sulina.cli import broker as broker_command
from sulina.cli.flags import remote
from sulina.client import move_watch
from sulina.client.move_watch import MoveWatch, OnProgress
from sulina.errors import SulinaError
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    PartitionPlacement,
    Placement,
    Rebalanced,
    TopicState,
    UnloadInfo,
)

TOPIC = "/default/orders"


def a_broker(name: str, **more: Any) -> BrokerInfo:
    plain = BrokerInfo(
        broker_id=name, url=f"http://{name}:1", state="active", is_leader=name == "b1", partitions=1, topics=1,
        connections=2, published_bytes_per_second=2048.0, uptime_seconds=3700.0,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **more)


def an_unload(step: str, partition: int = 0, **more: Any) -> UnloadInfo:
    plain = UnloadInfo(topic=TOPIC, partition=partition, step=step, from_broker="b1", to_broker="b2")
    return msgspec.structs.replace(plain, **more)


def a_place(broker: str | None, epoch: int, partition: int = 0, **more: Any) -> PartitionPlacement:
    state = TopicState.ACTIVE if broker else TopicState.CLOSED
    plain = PartitionPlacement(
        partition=partition, state=state, epoch=epoch, broker_id=broker, url=f"http://{broker}:1" if broker else None
    )
    return msgspec.structs.replace(plain, **more)


def a_cluster(*brokers: BrokerInfo, **more: Any) -> ClusterInfo:
    plain = ClusterInfo(
        brokers=list(brokers), leader="b1", topics=1, partitions=2, unassigned=0, recovering=0, unloads=[]
    )
    return msgspec.structs.replace(plain, **more)


class FakeCluster:
    """Each method answers with the next of its script, the last again and again; an error is raised."""

    def __init__(self) -> None:
        self.scripts: dict[str, list[Any]] = {"cluster": [a_cluster(a_broker("b1"), a_broker("b2"))]}
        self.asked: list[tuple[Any, ...]] = []

    def says(self, method: str, *answers: Any) -> None:
        self.scripts[method] = list(answers)

    def changes(self) -> list[tuple[Any, ...]]:
        """What was asked for, beside questions."""
        return [asked for asked in self.asked if asked[0] not in ("cluster", "placement", "moves")]

    def _answer(self, method: str, *arguments: Any, **named: Any) -> Any:
        self.asked.append((method, *arguments, *sorted(named.items())))
        script = self.scripts[method]
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, SulinaError):
            raise answer
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    @property
    def admin(self) -> Self:
        return self

    async def cluster(self) -> ClusterInfo:
        return self._answer("cluster")  # type: ignore[no-any-return]

    async def placement(self, topic: str) -> Placement:
        places = self._answer("placement", topic)
        return Placement(topic=topic, topic_id="t", partitions=places, brokers=[])

    async def move_topic(
        self, topic: str, *, wait: bool, on_progress: OnProgress | None = None, **named: Any
    ) -> list[UnloadInfo]:
        """Ask for moves, and follow them as the client does."""
        before = await self.placement(topic)
        asked: list[UnloadInfo] = self._answer("move_topic", topic, **named)
        return await MoveWatch(topic, asked, before, on_progress).run(self, 600.0) if wait and asked else asked

    async def moves(self, topic: str) -> list[UnloadInfo]:
        return self._answer("moves", topic)  # type: ignore[no-any-return]

    async def cancel_moves(self, topic: str, *, partition: int | None) -> list[UnloadInfo]:
        return self._answer("cancel_moves", topic, partition=partition)  # type: ignore[no-any-return]

    async def drain_broker(self, broker_id: str) -> BrokerInfo:
        return self._answer("drain_broker", broker_id)  # type: ignore[no-any-return]

    async def activate_broker(self, broker_id: str) -> BrokerInfo:
        return self._answer("activate_broker", broker_id)  # type: ignore[no-any-return]

    async def rebalance(self) -> Rebalanced:
        return self._answer("rebalance")  # type: ignore[no-any-return]


@contextlib.contextmanager
def playing(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Commands meet the fake instead of a node, and do not wait between two looks."""
    fake = FakeCluster()
    monkeypatch.setattr(remote, "client_for", lambda _url: fake)
    monkeypatch.setattr(move_watch, "POLL_SECONDS_MAX", 0.0)
    monkeypatch.setattr(broker_command, "POLL_SECONDS", 0.0)
    yield fake

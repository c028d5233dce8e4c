"""Reports the progress of a pipeline: in a topic of reports, and as positions of a registered reader.

What a bronze query has committed is its position: retention keeps everything after it. Reports are for people; when
they cannot be sent the pipeline goes on, and says so once.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from sulina.client import SyncClient
from sulina.client.sync import publish_encoded
from sulina.core.records.record import StoredRecord, encode
from sulina.core.records.routing import partition_of
from sulina.core.records.serializer import JSON_HEADERS
from sulina.errors import NamespaceNotFound, SulinaError, TopicNotFound
from sulina.spark.clients import client_of
from sulina.spark.pipeline.definition import Pipeline
from sulina.spark.pipeline.runner import TableProgress
from sulina.spark.stream_positions import EXPIRES_SECONDS, REPEAT_SECONDS
from sulina.types import TopicName
from sulina.wire.messages import TopicInfo

REPORT_SECONDS = 5.0

_logger = structlog.get_logger("sulina.pipeline")


class Report(msgspec.Struct, kw_only=True):
    """One record of the topic of reports."""

    pipeline: str
    at_ms: int
    tables: list[TableProgress]


@dataclass(slots=True)
class Reporter:
    """Sends the progress of a pipeline every few seconds, and what is new at the end."""

    pipeline: Pipeline
    clock: Callable[[], float] = time.monotonic
    _sent_at: float = float("-inf")
    _positions: dict[str, tuple[dict[str, int], float]] = field(default_factory=dict)
    _topic: TopicInfo | None = None
    _is_failing: bool = False

    def __call__(self, progress: list[TableProgress], *, is_last: bool = False) -> None:
        if self.pipeline.url is None or (not is_last and self.clock() - self._sent_at < REPORT_SECONDS):
            return
        self._sent_at = self.clock()
        try:
            client = client_of(self.pipeline.url)
            self._register(client, progress)
            self._publish(client, progress)
            self._is_failing = False
        except SulinaError as error:
            if not self._is_failing:
                _logger.warning("pipeline_not_reported", pipeline=self.pipeline.name, error=str(error))
            self._is_failing = True

    def _register(self, client: SyncClient, progress: list[TableProgress]) -> None:
        for one in progress:
            for topic, offsets in (one.offsets or {}).items():
                said, at = self._positions.get(f"{one.table}{topic}", (None, 0.0))
                if said == offsets and self.clock() - at < REPEAT_SECONDS:
                    continue
                client.admin.register_reader(
                    f"{self.pipeline.name}.{one.table}",
                    topic,
                    {int(number): offset for number, offset in offsets.items()},
                    expires_seconds=EXPIRES_SECONDS,
                    description=f"pipeline {self.pipeline.name}, bronze table {one.table}",
                )
                self._positions[f"{one.table}{topic}"] = (dict(offsets), self.clock())

    def _publish(self, client: SyncClient, progress: list[TableProgress]) -> None:
        if self.pipeline.progress_topic is None:
            return
        if self._topic is None:
            self._topic = _made(client, TopicName.parse(self.pipeline.progress_topic))
        now_ms, key = int(time.time() * 1000), self.pipeline.name.encode()
        value = msgspec.json.encode(Report(pipeline=self.pipeline.name, at_ms=now_ms, tables=progress))
        partition = partition_of(key, self._topic.settings.partitions)
        data = memoryview(encode([StoredRecord(value, key, now_ms, JSON_HEADERS)]))
        publish_encoded(client, self._topic.topic, partition, data, topic_id=self._topic.topic_id)


def _made(client: SyncClient, topic: TopicName) -> TopicInfo:
    """Return the topic of reports. The first pipeline creates it; from then on its settings are the user's."""
    with contextlib.suppress(TopicNotFound):
        return client.admin.topic(topic)
    try:
        return client.admin.create_topic(topic)
    except NamespaceNotFound:
        client.admin.create_namespace(topic.namespace)
        return client.admin.create_topic(topic)

"""Watches of etcd against streams that are written out: what a real server sends only in rare moments."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from sulina.errors import Compacted, InvalidSettings, MetadataFailed
from sulina.metadata import etcd_watch
from sulina.metadata.etcd_calls import EtcdRefused, Unanswered
from sulina.metadata.etcd_channel import EtcdEndpoints
from sulina.metadata.etcd_proto import etcd_pb2 as pb
from sulina.metadata.etcd_watch import EtcdWatches
from sulina.ports import Change

Item = pb.WatchResponse | Exception | None


class Script:
    """The streams of one watch, one after the other. A stream that has no more is silent."""

    def __init__(self, *streams: Sequence[Item]) -> None:
        self._streams = list(streams)
        self.starts: list[int] = []  # the revisions that they were asked to begin with
        self.cancelled = 0

    async def open(self, endpoint: object, request: pb.WatchRequest, seconds: float) -> Any:
        self.starts.append(request.create.start_revision)
        if not self._streams:
            raise Unanswered("there are no more streams")
        items = self._streams.pop(0)
        if items and isinstance(items[0], EtcdRefused):
            raise items[0]
        revision = request.create.start_revision  # the store has come that far, and no further
        return etcd_watch.OpenedStream(_Stream(self, list(items)), revision)  # type: ignore[arg-type]


class _Stream:
    def __init__(self, script: Script, items: list[Item]) -> None:
        self._script = script
        self._items = items

    async def read(self) -> pb.WatchResponse:
        if not self._items:
            await asyncio.Event().wait()
        item = self._items.pop(0)
        if isinstance(item, Exception):
            raise item
        assert item is not None
        return item

    def cancel(self) -> None:
        self._script.cancelled += 1


def sent(*events: tuple[int, str], fragment: bool = False, **others: Any) -> pb.WatchResponse:
    """An answer with one put for each (revision, key)."""
    found = [pb.Event(kv=pb.KeyValue(key=key.encode(), mod_revision=revision)) for revision, key in events]
    return pb.WatchResponse(events=found, fragment=fragment, **others)


async def follow(
    monkeypatch: pytest.MonkeyPatch, script: Script, count: int, *, after: int = 10, queue_changes_max: int = 100
) -> list[list[Change]]:
    """What a reader gets: so many revisions."""
    monkeypatch.setattr(etcd_watch, "open_stream", script.open)
    endpoints = EtcdEndpoints(["127.0.0.1:1"], tls=None, user=None, password=None, timeout_seconds=1.0)
    watches = EtcdWatches(endpoints, name_of=lambda key: key.decode(), queue_changes_max=queue_changes_max)
    watch = watches.follow("/", b"/", b"0", after=after)
    try:
        async with asyncio.timeout(10):
            return [list(await anext(watch)) for _ in range(count)]
    finally:
        await watch.aclose()
        await watches.close()
        await endpoints.close()


def revisions(seen: list[list[Change]]) -> list[tuple[int, ...]]:
    return [tuple(change.revision for change in changes) for changes in seen]


BROKEN = Unanswered("broken")


async def test_a_broken_watch_resumes_with_the_last_revision_that_it_saw_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(
        [sent((11, "/a"), (12, "/a"), (12, "/b")), sent((13, "/a"), fragment=True), BROKEN],
        [sent((12, "/a"), (12, "/b"), (13, "/a"), fragment=True), BROKEN],
        [sent((12, "/a"), fragment=True), sent((12, "/b"), (13, "/a"), fragment=True), sent((13, "/b"), (14, "/a"))],
    )
    seen = await follow(monkeypatch, script, 4)
    assert revisions(seen) == [(11,), (12, 12), (13, 13), (14,)]
    assert script.starts == [10, 12, 12]
    assert script.cancelled == 3


async def test_what_etcd_sends_again_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does to the watches of a member that gets a snapshot from its leader."""
    script = Script([sent((11, "/a")), sent((12, "/a")), sent((11, "/a"), (12, "/a"), (13, "/a")), sent((14, "/a"))])
    assert revisions(await follow(monkeypatch, script, 4)) == [(11,), (12,), (13,), (14,)]


async def test_a_watch_from_the_beginning_begins_with_the_first_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([sent((1, "/a")), BROKEN], [sent((2, "/a"))])
    assert revisions(await follow(monkeypatch, script, 2, after=0)) == [(1,), (2,)]
    assert script.starts == [1, 1]


async def test_a_report_of_progress_is_where_a_quiet_watch_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(
        [sent((11, "/a")), sent(header=pb.Header(revision=500)), BROKEN],
        [sent(header=pb.Header(revision=900), watch_id=-1), BROKEN],  # of the stream: not in order with the changes
        [sent((501, "/a"))],
    )
    assert revisions(await follow(monkeypatch, script, 2)) == [(11,), (501,)]
    assert script.starts == [10, 500, 500]


async def test_a_compaction_up_to_what_was_seen_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = sent(canceled=True, compact_revision=12)
    script = Script([sent((11, "/a"), (12, "/a")), gone], [sent((13, "/a"))])
    assert revisions(await follow(monkeypatch, script, 3)) == [(11,), (12,), (13,)]


async def test_a_compaction_past_what_was_seen_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([sent((11, "/a"))], [])
    with pytest.raises(Compacted) as told:
        await follow(monkeypatch, Script([sent(canceled=True, compact_revision=11)]), 1)
    assert (told.value.after, told.value.oldest) == (10, 12)
    assert revisions(await follow(monkeypatch, script, 1)) == [(11,)]


async def test_a_watch_that_may_not_be_is_told_and_one_that_was_dropped_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
    with pytest.raises(InvalidSettings):
        await follow(monkeypatch, Script([sent(canceled=True, cancel_reason=denied)]), 1)
    with pytest.raises(InvalidSettings):
        await follow(monkeypatch, Script([EtcdRefused(grpc.StatusCode.UNAUTHENTICATED, denied)]), 1)
    script = Script([sent(canceled=True, cancel_reason="etcdserver: no leader")], [sent((11, "/a"))])
    assert revisions(await follow(monkeypatch, script, 1)) == [(11,)]


async def test_a_fault_of_ours_does_not_leave_the_reader_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MetadataFailed, match="our bug"):
        await follow(monkeypatch, Script([RuntimeError("our bug")]), 1)


async def test_what_does_not_fit_is_not_half_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([sent(*((revision, "/a") for revision in range(11, 30)))])
    with pytest.raises(Compacted) as told:
        await follow(monkeypatch, script, 1, queue_changes_max=5)
    assert (told.value.after, told.value.oldest) == (10, 16)
    large = sent(*((11, f"/{number}") for number in range(50)))
    (changes,) = await follow(monkeypatch, Script([large]), 1, queue_changes_max=5)
    assert len(changes) == 50  # a single revision may have more


async def test_f2_a_stream_that_nobody_confirms_in_time_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member without a quorum may open a stream; the watch goes on when there is a quorum again."""
    answers: list[BaseException | None] = [None, MetadataFailed(path="etcd://x", cause=Unanswered("no quorum"))]

    async def believe(_: EtcdEndpoints, *, deadline: float) -> None:
        if answers and (failure := answers.pop(0)) is not None:
            raise failure

    monkeypatch.setattr(EtcdEndpoints, "believe", believe)
    script = Script([sent((11, "/a")), Unanswered("it broke")], [sent((12, "/b"))], [sent((12, "/b"))])
    found = await follow(monkeypatch, script, 2)
    assert [change.revision for changes in found for change in changes] == [11, 12]
    assert len(script.starts) == 3

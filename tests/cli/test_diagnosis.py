"""What `sulina doctor --cluster` makes of what it read: each state has its finding, a cluster that is well has none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sulina.cli.doctor import CheckResult, Grade
from sulina.cli.doctor.diagnosis import BrokerAnswer, BrokerDisk, ClusterFacts, diagnose
from sulina.core.cluster import keys
from sulina.core.cluster.entries import Current, DeleteMark, EpochEntry, GivenUp, Registration, Sealed
from sulina.core.cluster.recovery import Identity, Mark, Memory, Seen
from sulina.core.log.archive import ArchiveView
from sulina.core.log.resume import End
from sulina.core.topic import Policy
from sulina.errors import CorruptCommit, NewerFormat, SulinaError
from sulina.node.recovery import Known, Reports
from sulina.types import Epoch, Offset, PartitionName, TopicName, Version
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    MetadataInfo,
    NodeInfo,
    Trouble,
    TroubleKind,
    UnloadInfo,
    WaitingPartition,
)

TOPIC = TopicName("default", "orders")
ZERO = PartitionName(TOPIC, 0)
NOW_MS = 1_800_000_000_000
ETCD, OBJECTS = "etcd://10.0.0.1:2379", "s3://bucket/prefix"
RECOVER = f"sulina cluster recover --metadata {ETCD} --objects {OBJECTS}"
DRAINS = {"state": "draining"}


def registration(name: str, store_id: str) -> Registration:
    return Registration(broker_id=name, url=f"http://{name}", store_id=store_id, started_ms=1)


def stored(**more: msgspec.Struct) -> dict[str, bytes]:
    """What etcd has of a cluster with one topic, which b1 owns."""
    entries: dict[str, Any] = {
        keys.IDENTITY: Identity(cluster_id="c"),
        keys.mark("b1"): Mark(number=7),
        keys.delivery(TOPIC): {"delivery": "reliable", "partitions": 1, "created_ms": 1, "topic_id": "t1"},
        keys.epoch(ZERO): EpochEntry(epoch=5, broker_id="b1", store_id="s1", is_archived=False),
        keys.register("b1"): registration("b1", "s1"),
        keys.register("b2"): registration("b2", "s2"),
    }
    return {key: msgspec.json.encode(value) for key, value in {**entries, **more}.items()}


def memory(entries: Mapping[str, bytes] | None = None, **seen: Any) -> Memory:
    what = {"cluster_id": "c", "generation": 1, "revision": 100, "mark": 7, "broker_id": "b1", "store_id": "s1"}
    kept = stored() if entries is None else entries
    return Memory(seen=Seen(**{**what, **seen}), entries={key: value.decode() for key, value in kept.items()})


def archived(offset: int = 10, epoch: int = 5, claimer: str = "b1") -> ArchiveView:
    at = Offset(offset)
    return ArchiveView(Version(3), Epoch(epoch), "holder", Offset(0), at, Version(offset), (), claimer)


def current(**more: Any) -> Current:
    return Current(**{"archived_offset": 10, "end_offset": 20, "epoch": 5, "at_ms": 1, "topic_id": "t1", **more})


def a_known(**more: Any) -> Known:
    what: dict[str, Any] = {
        "identity": Identity(cluster_id="c"),
        "revision": 100,
        "stored": stored(),
        "memories": [memory()],
        "archives": {ZERO: archived()},
        "unreadable": {},
        "reports": {ZERO: Reports(current=current())},
    }
    return Known(**{**what, **more})


def a_broker(name: str, **more: Any) -> BrokerInfo:
    what = {
        "broker_id": name, "url": f"http://{name}", "state": "active", "is_leader": name == "b1", "partitions": 1,
        "topics": 1, "connections": 0, "published_bytes_per_second": 0.0, "uptime_seconds": 60.0,
    }  # fmt: skip
    return BrokerInfo(**{**what, **more})


def a_cluster(**more: Any) -> ClusterInfo:
    what: dict[str, Any] = {
        "brokers": [a_broker("b1"), a_broker("b2")], "leader": "b1", "topics": 1, "partitions": 1, "unassigned": 0,
        "recovering": 0, "unloads": [], "metadata": MetadataInfo(is_full=False, used_bytes=1, quota_bytes=100),
    }  # fmt: skip
    return ClusterInfo(**{**what, **more})


def answer(name: str, *troubles: Trouble, counts: dict[str, int] | None = None, **more: Any) -> BrokerAnswer:
    node = NodeInfo(
        **{
            "broker_id": name,
            "version": "1",
            "is_ready": True,
            "topics": 1,
            "connections": 0,
            "uptime_seconds": 60.0,
            "store_id": name.replace("b", "s"),
            "disk_bytes": 1 << 40,
            "disk_free_bytes": 1 << 39,
            "troubles": list(troubles),
            "trouble_counts": counts or {each.kind: 1 for each in troubles},
            **more,
        }
    )
    return BrokerAnswer(url=f"http://{name}", node=node, cluster=a_cluster())


def a_disk(**more: Any) -> BrokerDisk:
    ends = {ZERO: End(Offset(20), Version(20), Epoch(5))}
    seen = memory().seen
    return BrokerDisk(**{"path": "/data", "free_bytes": 1 << 39, "store_id": "s1", "seen": seen, "ends": ends, **more})


NEWER = NewerFormat(family="cluster memory format", name="/data/cluster-seen.json", format=2, newest=1)
HEALTHY = ClusterFacts(
    now_ms=NOW_MS,
    brokers=[answer("b1"), answer("b2")],
    cluster=a_cluster(),
    policies={TOPIC: Policy()},
    metadata=ETCD,
    etcd=CheckResult(check="etcd", grade=Grade.OK, found="it answers"),
    known=a_known(),
    objects=OBJECTS,
    disk=a_disk(),
)


def found(**more: Any) -> list[CheckResult]:
    return [finding for finding in diagnose(replace(HEALTHY, **more)) if finding.grade != Grade.OK]


def on_b1(kind: str, what: str = "why", partition: int | None = 0) -> dict[str, Any]:
    trouble = Trouble(kind=kind, what=what, topic=None if partition is None else str(TOPIC), partition=partition)
    return {"brokers": [answer("b1", trouble), answer("b2")]}


def unload(**more: Any) -> UnloadInfo:
    what = {"topic": str(TOPIC), "partition": 0, "step": "requested", "from_broker": "b1", "to_broker": "b2"}
    return UnloadInfo(**{**what, **more})


def waiting(**more: Any) -> dict[str, Any]:
    one = WaitingPartition(**{"topic": str(TOPIC), "partition": 0, "since_seconds": 0.5, **more})
    return {"cluster": a_cluster(waiting=[one], unassigned=1, recovering=int("waits_for" in more))}


def dead_letters(**ways: str) -> dict[str, Any]:
    topics = {TopicName("default", name): Policy(dead_letter=f"/default/{to}") for name, to in ways.items()}
    return {"policies": {TopicName("default", "end"): Policy(), **topics}}


def given_up(days: float) -> dict[str, Any]:
    one = GivenUp(start=14, end=30, reason="they were missing", at_ms=int(NOW_MS - days * 86_400_000))
    return {"known": a_known(reports={ZERO: Reports(given_up=(one,))})}


def cluster(**more: Any) -> dict[str, Any]:
    return {"cluster": a_cluster(**more)}


def known(**more: Any) -> dict[str, Any]:
    return {"known": a_known(**more)}


WITHOUT_TOPIC = {key: value for key, value in stored().items() if key != keys.delivery(TOPIC)}
SEALED = Sealed(last_committed_offset=29, next_offset=30, version=30, epoch=5, broker_id="b2", ts="")

# The facts, then: the check, its grade, words of what was found, words of what to do.
STATES: dict[str, tuple[dict[str, Any], str, Grade, str, str]] = {
    "1 etcd is emptied": (
        known(identity=None, stored={}, revision=3), "history", Grade.FAIL,
        "it is empty, but broker b1 has seen cluster c in it; it lacks 1 topic (/default/orders)", RECOVER,
    ),
    "1 etcd is of an older generation": (
        known(memories=[memory(generation=2)]), "history", Grade.FAIL, "its generation is 1, but broker b1 has seen 2",
        RECOVER,
    ),
    "1 etcd is at an older revision": (
        known(revision=99), "history", Grade.FAIL, "it is at revision 99, but broker b1 has seen 100", RECOVER,
    ),
    "1 etcd has lost a mark": (
        known(memories=[memory(mark=8)]), "history", Grade.FAIL, "written mark 8, but the store has 7 of it", RECOVER,
    ),
    "1 only the disk has seen it": (
        {"disk": a_disk(seen=memory(revision=200).seen)}, "history", Grade.FAIL, "has seen 200", RECOVER,
    ),
    "1 a broker has noticed": (
        on_b1("metadata_went_back", "restored to an older state", None), "history", Grade.FAIL,
        "restored to an older state", RECOVER,
    ),
    "1 another cluster": (
        {"disk": a_disk(seen=memory(cluster_id="d").seen)}, "history", Grade.FAIL,
        "etcd belongs to cluster c, disk or archive to d", "--data",
    ),
    "1 a topic vanished": (
        known(stored=WITHOUT_TOPIC), "topics", Grade.FAIL, "1 topic (/default/orders) vanished", RECOVER,
    ),
    "1 an orphan at a broker": (
        on_b1(TroubleKind.DIRECTORY_ORPHANED, "x.orphan-t1", None), "directories", Grade.FAIL, "x.orphan-t1 at b1",
        RECOVER,
    ),
    "1 an orphan on the disk": (
        {"brokers": [], "disk": a_disk(orphaned=["x.orphan-t1"])}, "directories", Grade.FAIL, "/data/x.orphan-t1",
        "delete",
    ),
    "1 a directory is set aside": (
        {"brokers": [], "disk": a_disk(set_aside=["x.set-aside-3-0"])}, "directories", Grade.WARN,
        "/data/x.set-aside-3-0", "delete",
    ),
    "1 the memory on the disk is damaged": (
        {"disk": a_disk(damage=CorruptCommit(name="cluster-memory.json", reason="no JSON"))}, "disk logs", Grade.FAIL,
        "cluster-memory.json is damaged", "--data",
    ),
    "1 a newer version wrote the memory on the disk, and there is no etcd": (
        {"disk": a_disk(damage=NEWER), "known": None}, "disk logs", Grade.FAIL, "cluster-seen.json has", "upgrade",
    ),
    "1 a newer version wrote an archive": (
        known(unreadable={ZERO: NEWER}), "archive", Grade.FAIL, "cluster-seen.json has", "upgrade",
    ),
    "1 a newer version wrote to the object store": (
        {"objects_error": NEWER}, "archive", Grade.FAIL, "cluster-seen.json has", "upgrade",
    ),
    "2 a claim above etcd's epoch": (
        known(archives={ZERO: archived(epoch=6, claimer="b2")}), "epochs", Grade.FAIL,
        "/default/orders/0: epoch 6 was claimed by b2 in the archive, etcd has 5", RECOVER,
    ),
    "2 one epoch with two owners": (
        known(archives={ZERO: archived(claimer="b2")}), "epochs", Grade.FAIL,
        "epoch 5 belongs to b1 in etcd, and was claimed by b2", RECOVER,
    ),
    "2 a broker was given an epoch that is taken": (
        on_b1("epoch_taken", "epoch 5 was claimed by broker b2"), "epochs", Grade.FAIL,
        "/default/orders/0 at b1: epoch 5 was claimed", RECOVER,
    ),
    "3 a broker keeps a log closed": (
        on_b1("log_incomplete", "records [14, 30) are missing"), "partitions", Grade.FAIL,
        "/default/orders/0 at b1: records [14, 30) are missing",
        "sulina topic unload /default/orders --partition 0 --give-up",
    ),
    "3 the archive ends before the report": (
        known(archives={ZERO: archived(4)}), "archive", Grade.FAIL, "records [4, 10) are missing", "--give-up",
    ),
    "3 the archive ends before the sealed state": (
        known(reports={ZERO: Reports(sealed=SEALED)}), "archive", Grade.FAIL, "b2 sealed it at offset 30", "--give-up",
    ),
    "3 an archive cannot be read": (
        known(unreadable={ZERO: CorruptCommit(name="7.json", reason="no JSON")}), "archive", Grade.FAIL,
        "/default/orders/0: 7.json is damaged", "restore the objects",
    ),
    "3 the object store does not answer": (
        {"objects_error": SulinaError("no such bucket")}, "archive", Grade.FAIL,
        "cannot read s3://bucket/prefix: no such bucket", "--objects",
    ),
    "4 a disk ends before the report": (
        {"disk": a_disk(ends={ZERO: End(Offset(12), Version(12), Epoch(5))})}, "disk logs", Grade.FAIL,
        "records [12, 20) are missing", "--give-up",
    ),
    "5 a clock is ahead": (
        cluster(brokers=[a_broker("b1"), a_broker("b2", clock_ahead_seconds=172_800.0)]), "clocks", Grade.WARN,
        "the clock of b2 is 2 d 0 h ahead of the others", "machine of b2",
    ),
    "5 a clock is behind": (
        cluster(brokers=[a_broker("b1", clock_ahead_seconds=-90.0)]), "clocks", Grade.WARN, "1 min 30 s behind", "b1",
    ),
    "7 a partition waits for a lost broker": (
        waiting(waits_for="b3"), "owners", Grade.FAIL, "(/default/orders/0) recovering: only the disk of b3",
        "sulina topic move /default/orders --partition 0 --to BROKER --force",
    ),
    "7 records were given up": (
        given_up(1), "given up", Grade.WARN, "/default/orders/0: records [14, 30) were given up 1 d 0 h ago", "publish",
    ),
    "8 a broker is cut off": (
        on_b1(TroubleKind.CUT_OFF, "lost touch", None), "brokers", Grade.FAIL, "b1 is not ready: lost touch", "network",
    ),
    "8 a broker starts": (
        on_b1(TroubleKind.NOT_SERVING, "it is starting", None), "brokers", Grade.FAIL, "it is starting", "sulina serve",
    ),
    "8 a broker is not ready and does not say why": (
        {"brokers": [answer("b1", is_ready=False)]}, "brokers", Grade.FAIL, "b1 is not ready", "curl http://b1/ready",
    ),
    "8 a broker does not answer": (
        {"brokers": [answer("b1"), BrokerAnswer(url="http://b2", error="refused")]}, "brokers", Grade.FAIL,
        "http://b2 does not answer: refused", "start that broker",
    ),
    "8 a broker's lease ran out": (
        cluster(brokers=[a_broker("b1"), a_broker("b2", state="unreachable", url=None)]), "brokers", Grade.WARN,
        "1 broker (b2) unreachable", "start b2",
    ),
    "8 no broker is there": ({"brokers": []}, "brokers", Grade.FAIL, "no broker is registered", "start the brokers"),
    "8 a broker whose etcd went back": (
        on_b1("metadata_went_back", "restored", None), "brokers", Grade.FAIL, "b1 is not ready: restored", "history",
    ),
    "15 a broker is not ready because of its disk": (
        {"brokers": [answer("b1", counts={"log_stopped": 1, "disk_full": 2}, is_ready=False)]}, "brokers", Grade.FAIL,
        "b1 is not ready: 3 of its partitions accept no records", "partitions",
    ),
    "a data directory was copied": (
        on_b1(TroubleKind.REPLACED, "another process", None), "brokers", Grade.FAIL, "another process", "stop one",
    ),
    "two brokers have one store": (
        {"brokers": [answer("b1"), answer("b2", store_id="s1")]}, "brokers", Grade.FAIL, "brokers b1, b2 share a data",
        "empty --data",
    ),
    "two registrations have one store": (
        known(stored=stored(**{keys.register("b3"): registration("b3", "s2")})),
        "brokers", Grade.FAIL, "brokers b2, b3 share a data directory", "stop all but",
    ),
    "14 a circle of dead letters": (
        dead_letters(a="b", b="a", c="a"), "dead letters", Grade.FAIL, "/default/a → /default/b → /default/a",
        "--dead-letter",
    ),
    "a dead-letter topic is not there": (
        dead_letters(a="none"), "dead letters", Grade.WARN, "(/default/none of /default/a) missing",
        "sulina topic create /default/none",
    ),
    "15 a disk is nearly full": (
        {"brokers": [answer("b1", disk_free_bytes=500 << 20)]}, "disks", Grade.WARN, "of b1 has 500.0 MiB free",
        "free disk space",
    ),
    "15 a disk is full": (
        {"disk": a_disk(free_bytes=1 << 20)}, "disks", Grade.FAIL, "the disk of /data has 1.0 MiB free", "drain",
    ),
    "15 a disk has no room for a log": (
        on_b1(TroubleKind.DISK_FULL, "No space left"), "partitions", Grade.FAIL, "at b1: No space left", "free space",
    ),
    "a log has stopped": (
        on_b1(TroubleKind.LOG_STOPPED, "Input/output error"), "partitions", Grade.FAIL, "at b1: Input/output error",
        "correct that fault",
    ),
    "a partition is not served": (
        on_b1(TroubleKind.NOT_SERVED), "partitions", Grade.FAIL, "/default/orders/0 at b1: why", "its log says more",
    ),
    "15 a move fails": (
        cluster(unloads=[unload(error="no room", since_seconds=4.0)]), "moves", Grade.WARN,
        "/default/orders/0 is leaving b1 to b2 for 4 s, requested: no room", "sulina topic cancel-move /default/orders",
    ),
    "15 a move hangs": (cluster(unloads=[unload(since_seconds=301.0)]), "moves", Grade.WARN, "for 5 min 1 s", "cancel"),
    "a broker drains, and nobody takes what it has": (
        cluster(brokers=[a_broker("b1", **DRAINS)]), "moves", Grade.WARN, "b1 is draining, and has 1 partition",
        "sulina broker activate b1",
    ),
    "16 etcd is full, by itself": (
        {"etcd": CheckResult(check="etcd", grade=Grade.FAIL, found="NOSPACE", advice="compact")}, "etcd", Grade.FAIL,
        "NOSPACE", "compact",
    ),
    "16 etcd is full, by a broker": (
        {"etcd": None, **cluster(metadata=MetadataInfo(is_full=True, size_bytes=2048))}, "etcd", Grade.FAIL,
        "FULL (NOSPACE): 2.0 KiB", "operations.md",
    ),
    "16 etcd is nearly full": (
        {"etcd": None, **cluster(metadata=MetadataInfo(is_full=False, used_bytes=71, quota_bytes=100))}, "etcd",
        Grade.WARN, "71 B of 100 B", "quota",
    ),
    "16 nobody leads": (
        cluster(leader=None), "leader", Grade.FAIL, "etcd's history is not compacted", "start a broker",
    ),
    "17 a consumer does not ack": (
        on_b1(TroubleKind.CONSUMER_LATE, "consumer bad of subscription s"), "consumers", Grade.WARN, "consumer bad",
        "restart",
    ),
    "a partition has no owner": (
        waiting(since_seconds=61.0), "owners", Grade.FAIL, "(/default/orders/0) without an owner for 1 min 1 s",
        "sulina broker activate",
    ),
}  # fmt: skip


def test_r11_a_cluster_that_is_well_has_one_line_for_each_check() -> None:
    findings = diagnose(HEALTHY)
    assert [finding for finding in findings if finding.grade != Grade.OK] == []
    checks = [finding.check for finding in findings]
    assert len(set(checks)) == len(checks) == 17


@pytest.mark.parametrize("state", STATES)
def test_r11_a_state_is_found_with_its_grade_and_what_to_do(state: str) -> None:
    facts, check, grade, what, advice = STATES[state]
    findings = [finding for finding in found(**facts) if finding.check == check]
    assert any(
        finding.grade == grade and what in finding.found and advice in (finding.advice or "") for finding in findings
    ), findings


@pytest.mark.parametrize(
    "facts",
    [
        waiting(since_seconds=3.0),  # it has just been made, or moves
        cluster(unloads=[unload(since_seconds=2.0)]),
        cluster(brokers=[a_broker("b1"), a_broker("b2", **DRAINS)], unloads=[unload(from_broker="b2")]),
        known(stored={**WITHOUT_TOPIC, keys.deleted("t1"): msgspec.json.encode(DeleteMark(topic=str(TOPIC), at_ms=1))}),
        known(archives={ZERO: archived(epoch=4, claimer="b2")}, reports={}),  # the new owner has not opened it yet
        known(reports={ZERO: Reports(current=current(archived_offset=99, topic_id="t0"))}),  # of a former topic
        known(memories=[memory(mark=6, revision=50), memory(broker_id="b9", mark=0)]),
        {"disk": a_disk(store_id="s9", ends={ZERO: End(Offset(1), Version(1), Epoch(2))})},  # another has gone on
        {"disk": a_disk(seen=None, ends={})},
        given_up(8),
        dead_letters(a="end", b="a"),
        {"policies": {TopicName("default", "a"): Policy(dead_letter="/default/a")}},  # it is its own end
    ],
)
def test_r11_what_only_looks_like_trouble_is_not_told(facts: dict[str, Any]) -> None:
    assert found(**facts) == []


def test_r11_what_nobody_was_asked_for_is_not_judged() -> None:
    """With a data directory alone, and with brokers alone."""
    alone = ClusterFacts(now_ms=NOW_MS, disk=a_disk(set_aside=["x.set-aside-3-0"]))
    assert [finding.check for finding in diagnose(alone)] == ["brokers", "disks", "directories"]
    silent = ClusterFacts(now_ms=NOW_MS, brokers=[BrokerAnswer(url="http://b1", error="refused")])
    assert [finding.check for finding in diagnose(silent)] == ["brokers"]
    away = replace(alone, etcd=CheckResult(check="etcd", grade=Grade.FAIL, found="away"), objects=OBJECTS)
    (no_broker, *_) = diagnose(away)
    assert (no_broker.found, no_broker.advice) == (
        "the brokers are unknown, because etcd does not answer",
        "name brokers with --url",
    )
    brokers = ClusterFacts(now_ms=NOW_MS, brokers=HEALTHY.brokers, cluster=HEALTHY.cluster, policies={})
    assert all(finding.grade == Grade.OK for finding in diagnose(brokers))


def test_r11_thousands_are_counted_and_a_few_are_named() -> None:
    many = [Trouble(kind="log_incomplete", what="x", topic=f"/default/t{number}", partition=0) for number in range(20)]
    closed = found(brokers=[answer("b1", *many, counts={"log_incomplete": 4000})])
    assert [finding.found for finding in closed][-1] == "3,995 more partitions with log_incomplete"
    assert len(closed) == 6
    rows: Sequence[WaitingPartition] = [
        WaitingPartition(topic=f"/default/t{number}", partition=0, since_seconds=1.0, waits_for="b3")
        for number in range(100)
    ]
    (waits,) = found(cluster=a_cluster(waiting=list(rows), unassigned=3000, recovering=3000))
    assert "100 partitions (/default/t0/0, " in waits.found
    assert "and 95 more) recovering (of 3,000 that wait)" in waits.found


def test_r11_who_went_back_is_told_before_what_follows_from_it() -> None:
    emptied = found(known=a_known(identity=None, stored={}, revision=3), brokers=[])
    assert [finding.check for finding in emptied][:3] == ["brokers", "history", "topics"]

"""The rules of `sulina doctor --cluster`: findings about a cluster from the facts that were read, without IO.

Each check returns one finding for each kind of trouble, or one that says that all is well. A check without facts
returns nothing. A finding counts all names and shows the first few.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sulina.cli import terminal
from sulina.cli.doctor import FREE_BYTES_LOW, FREE_BYTES_NONE, CheckResult, Grade
from sulina.cli.doctor.stores import FULL_ADVICE, PRESSED_ADVICE
from sulina.core.cluster import history, keys
from sulina.core.cluster.entries import EpochEntry, GivenUp, Registration
from sulina.core.cluster.recovery import Seen, evidence, merged, partitions_of, plan_recovery
from sulina.core.delivery.dead_letter import check_way, dead_letter_topic, is_end
from sulina.core.formats import METADATA
from sulina.core.log.resume import ARCHIVE, DIRECTORY, End, check_witnesses, witnesses
from sulina.core.topic import Policy
from sulina.errors import InvalidSettings, LogIncomplete, NewerFormat, SulinaError
from sulina.node.recovery import Known
from sulina.types import Epoch, PartitionName, TopicName
from sulina.wire.messages import BrokerInfo, ClusterInfo, NodeInfo, Trouble, TroubleKind, UnloadInfo

NAMES_MAX = 5  # shown of many
WAITS_SECONDS_MAX = 10.0  # a partition is without an owner for a moment whenever it moves
MOVES_SECONDS_MAX = 300.0
GIVEN_UP_SECONDS = 7 * 24 * 3600.0  # for this long, discarded records are reported
WENT_BACK = "metadata_went_back"
STOPPED = (TroubleKind.DISK_FULL, TroubleKind.LOG_STOPPED)
UPGRADE = "run the doctor of the version that wrote it: upgrade this Sulina; nothing is damaged"
EPOCH_TROUBLES = ("epoch_taken", "stale_epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAnswer:
    """The answer of a broker, or the error of asking it."""

    url: str
    node: NodeInfo | None = None  # None: it did not answer
    cluster: ClusterInfo | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        return self.node.broker_id if self.node is not None else self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDisk:
    """The state of a broker's data directory."""

    path: str
    free_bytes: int
    store_id: str | None = None
    seen: Seen | None = None  # None: it was never part of a cluster
    has_memory: bool = False
    damage: SulinaError | None = None  # why its memory of the cluster cannot be read
    orphaned: Sequence[str] = ()
    set_aside: Sequence[str] = ()
    ends: Mapping[PartitionName, End] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The facts that were read about a cluster. A field is None if it was not asked for, or had no answer."""

    now_ms: int
    brokers: Sequence[BrokerAnswer] = ()
    cluster: ClusterInfo | None = None  # by a broker that is in touch with etcd, or by etcd itself
    policies: Mapping[TopicName, Policy] | None = None  # of all topics, with inherited fields
    metadata: str | None = None  # the URL of etcd, if it was asked
    etcd: CheckResult | None = None
    known: Known | None = None  # by etcd, memories of brokers and archives
    objects: str | None = None  # the URL of the archive, if it was asked for
    objects_error: SulinaError | None = None
    disk: BrokerDisk | None = None


def diagnose(facts: ClusterFacts) -> list[CheckResult]:
    """Return the findings of all checks, in the order of `CHECKS`."""
    return [finding for check in CHECKS for finding in check(facts)]


def _result(check: str, found: Sequence[CheckResult], well: str) -> list[CheckResult]:
    return list(found) or [CheckResult(check=check, grade=Grade.OK, found=well)]


def _some(names: Iterable[object]) -> str:
    """Return names as `a, b, c and 997 more`."""
    listed = list(map(str, names))
    more = f" and {len(listed) - NAMES_MAX:,} more" if len(listed) > NAMES_MAX else ""
    return ", ".join(listed[:NAMES_MAX]) + more


def _counted_some(names: Sequence[object], one: str) -> str:
    """Return names with their count, as `2 partitions (a/0, a/1)`."""
    return f"{terminal.counted(len(names), one)} ({_some(names)})"


def _each(check: str, grade: Grade, found: Sequence[tuple[str, str]], count: int, more: str) -> Iterator[CheckResult]:
    """Yield a finding for each of the first few (what, advice), and one that counts the others."""
    for what, advice in found[:NAMES_MAX]:
        yield CheckResult(check=check, grade=grade, found=what, advice=advice)
    if (left := count - min(len(found), NAMES_MAX)) > 0:
        yield CheckResult(check=check, grade=grade, found=f"{left:,} more {more}", figures={"count": float(count)})


def remedy(error: SulinaError, otherwise: str) -> str:
    """Return what to do about something that cannot be read; `otherwise` if it is not of a newer version."""
    return UPGRADE if isinstance(error, NewerFormat) else otherwise


def _answering(facts: ClusterFacts) -> list[NodeInfo]:
    return [answer.node for answer in facts.brokers if answer.node is not None]


def _troubles(facts: ClusterFacts, *kinds: str) -> list[tuple[str, Trouble]]:
    """Return the troubles of these kinds that brokers report, each with the broker's ID."""
    nodes = _answering(facts)
    return [(node.broker_id, trouble) for node in nodes for trouble in node.troubles if trouble.kind in kinds]


def _count(facts: ClusterFacts, *kinds: str) -> int:
    """Count the troubles of these kinds, including those that brokers did not name."""
    nodes = _answering(facts)
    return sum(node.trouble_counts.get(kind, 0) for node in nodes for kind in kinds)


def _place(trouble: Trouble) -> str:
    return str(trouble.topic) if trouble.partition is None else f"{trouble.topic}/{trouble.partition}"


# Brokers


def check_brokers(facts: ClusterFacts) -> list[CheckResult]:
    """Check that every broker answers and is ready."""
    asked = facts.brokers
    away = "start that broker; if it runs, check the network to it, or correct --url"
    silent = [(f"{answer.url} does not answer: {answer.error}", away) for answer in asked if answer.node is None]
    found = list(_each("brokers", Grade.FAIL, silent, len(silent), "brokers do not answer"))
    if not asked:
        advice = "start the brokers; `sulina cluster recover` and the findings below work without them"
        what = "no broker is registered in etcd"
        if facts.known is None:
            what, advice = "the brokers are unknown, because etcd does not answer", "name brokers with --url"
        found.append(CheckResult(check="brokers", grade=Grade.FAIL, found=what, advice=advice))
    found += _unready(facts)
    gone = [info for info in _infos(facts) if info.state == "unreachable"]
    if gone:
        names = [info.broker_id for info in gone]
        found.append(
            CheckResult(
                check="brokers",
                grade=Grade.WARN,
                found=f"{_counted_some(names, 'broker')} unreachable: the lease ran out",
                advice=f"start {names[0]}; if it runs, ask it why: sulina doctor --cluster --url URL-OF-{names[0]}",
            )
        )
    found += _shared_stores(facts)
    return _result("brokers", found, f"{len(asked)} of {terminal.counted(len(asked), 'broker')} ready")


def _infos(facts: ClusterFacts) -> list[BrokerInfo]:
    return facts.cluster.brokers if facts.cluster is not None else []


UNREADY = {
    WENT_BACK: "see history, below",
    TroubleKind.CUT_OFF: "check the network from that broker to etcd; it continues when it reaches etcd",
    TroubleKind.REPLACED: "stop one of the two processes, and give each broker a data directory of its own",
    TroubleKind.NOT_SERVING: "wait until it has started; if it stops, start it again: sulina serve",
}


def _unready(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Find brokers that answer but are not ready."""
    found = []
    for answer in facts.brokers:
        node = answer.node
        if node is None:
            continue
        own = next((one for one in node.troubles if one.kind in UNREADY and one.partition is None), None)
        if own is not None:
            found.append((f"{node.broker_id} is not ready: {own.what}", UNREADY[own.kind]))
        elif not node.is_ready and (stopped := sum(node.trouble_counts.get(kind, 0) for kind in STOPPED)):
            what = f"{node.broker_id} is not ready: {stopped} of its partitions accept no records"
            found.append((what, "see partitions, below"))
        elif not node.is_ready:
            found.append((f"{node.broker_id} is not ready", f"find out why: curl {answer.url}/ready"))
    yield from _each("brokers", Grade.FAIL, found, len(found), "brokers are not ready")


def _shared_stores(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Find brokers with different IDs whose data directories are copies of each other."""
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for answer in facts.brokers:
        if answer.node is not None and answer.node.store_id is not None:
            owners[answer.node.store_id].add(answer.node.broker_id)
    for key, value in (facts.known.stored if facts.known is not None else {}).items():
        if key.startswith(keys.REGISTER):
            registration = METADATA.decode(value, Registration, key)
            owners[registration.store_id].add(registration.broker_id)
    for store_id, names in sorted(owners.items()):
        if len(names) > 1:
            yield CheckResult(
                check="brokers",
                grade=Grade.FAIL,
                found=f"brokers {_some(sorted(names))} share a data directory, or have copies of it (store {store_id})",
                advice="stop all but the one that had it first, and start the others with an empty --data",
            )


def check_leader(facts: ClusterFacts) -> list[CheckResult]:
    """Check that the cluster has a leader, which assigns partitions and compacts etcd's history."""
    if facts.cluster is None:
        return []
    found = []
    if facts.cluster.leader is None:
        found.append(
            CheckResult(
                check="leader",
                grade=Grade.FAIL,
                found="no leader: partitions are not assigned, do not fail over, and etcd's history is not compacted",
                advice="start a broker; if brokers run, one is elected within --lease-seconds unless etcd takes no "
                "writes",
            )
        )
    return _result("leader", found, f"{facts.cluster.leader} is the leader")


def check_clocks(facts: ClusterFacts) -> list[CheckResult]:
    """Check that the clocks of the brokers agree; retention by age is paused where one is wrong."""
    if facts.cluster is None:
        return []
    items = []
    for info in facts.cluster.brokers:
        if info.clock_ahead_seconds:
            off = terminal.seconds_text(abs(info.clock_ahead_seconds))
            way = "ahead of" if info.clock_ahead_seconds > 0 else "behind"
            what = f"the clock of {info.broker_id} is {off} {way} the others, so retention does not trust it"
            items.append((what, f"set the clock on the machine of {info.broker_id} by a time service (NTP)"))
    found = list(_each("clocks", Grade.WARN, items, len(items), "clocks are wrong"))
    return _result("clocks", found, "the clocks of all brokers agree")


def check_disks(facts: ClusterFacts) -> list[CheckResult]:
    """Check that the disks of the brokers have room."""
    nodes = _answering(facts)
    free = {node.broker_id: node.disk_free_bytes for node in nodes if node.disk_free_bytes is not None}
    if facts.disk is not None:
        free[facts.disk.path] = facts.disk.free_bytes
    if not free:
        return []
    advice = "free disk space, set a retention for topics, or move partitions away: sulina broker drain BROKER"
    found: list[CheckResult] = []
    for grade, least_bytes, most_bytes in (
        (Grade.FAIL, -1, FREE_BYTES_NONE),
        (Grade.WARN, FREE_BYTES_NONE, FREE_BYTES_LOW),
    ):
        low = sorted((count, name) for name, count in free.items() if least_bytes <= count < most_bytes)
        items = [(f"the disk of {name} has {terminal.bytes_text(count)} free", advice) for count, name in low]
        found += _each("disks", grade, items, len(items), "disks have little space")
    least = min(free.values())
    return _result("disks", found, f"at least {terminal.bytes_text(least)} free on each")


# The metadata store


def check_etcd(facts: ClusterFacts) -> list[CheckResult]:
    """Check that etcd answers and has room, by its own answer or by a broker's."""
    if facts.etcd is not None:
        return [facts.etcd]
    space = facts.cluster.metadata if facts.cluster is not None else None
    if space is None:
        return []
    used = terminal.bytes_text(space.used_bytes or space.size_bytes or 0)
    quota = f" of {terminal.bytes_text(space.quota_bytes)}" if space.quota_bytes else ""
    found = []
    if space.is_full:
        found.append(
            CheckResult(check="etcd", grade=Grade.FAIL, found=f"FULL (NOSPACE): {used}{quota}", advice=FULL_ADVICE)
        )
    elif history.is_pressed(is_full=False, used_bytes=space.used_bytes, quota_bytes=space.quota_bytes):
        found.append(CheckResult(check="etcd", grade=Grade.WARN, found=f"{used}{quota} in use", advice=PRESSED_ADVICE))
    return _result("etcd", found, f"{used}{quota} in use")


def check_history(facts: ClusterFacts) -> list[CheckResult]:
    """Check that etcd still has what brokers, disks and archive have seen in it."""
    shown = [trouble.what for _, trouble in _troubles(facts, WENT_BACK) if trouble.partition is None]
    known, seen = facts.known, _seen(facts)
    if known is not None:
        marks = known.marks
        shown += [said for one in seen if (said := evidence(one, known.identity, known.revision, marks)) is not None]
    foreign = {
        one.cluster_id
        for one in seen
        if known is not None and known.identity is not None and one.cluster_id != known.identity.cluster_id
    }
    found = []
    if foreign and known is not None and known.identity is not None:
        found.append(
            CheckResult(
                check="history",
                grade=Grade.FAIL,
                found=f"etcd belongs to cluster {known.identity.cluster_id}, disk or archive to "
                f"{_some(sorted(foreign))}",
                advice="correct --metadata, --objects and --data: they must belong to the same cluster",
            )
        )
    elif shown:
        found.append(
            CheckResult(
                check="history",
                grade=Grade.FAIL,
                found=f"etcd went back to an older state, or was emptied: {shown[0]}{_lost(facts)}",
                advice=f"publishes are not acknowledged until you run: {_recover(facts)}",
            )
        )
    if known is None and not _answering(facts):
        return found
    return _result("history", found, _well(known, seen))


def _recover(facts: ClusterFacts) -> str:
    """Return the command that restores what etcd has lost."""
    metadata, objects = facts.metadata or "etcd://…", facts.objects or "URL"
    return f"sulina cluster recover --metadata {metadata} --objects {objects}"


def _seen(facts: ClusterFacts) -> list[Seen]:
    seen = [memory.seen for memory in facts.known.memories] if facts.known is not None else []
    return [*seen, *([facts.disk.seen] if facts.disk is not None and facts.disk.seen is not None else [])]


def _well(known: Known | None, seen: Sequence[Seen]) -> str:
    if known is None or known.identity is None:
        return "no broker reports that etcd went back"
    identity = known.identity
    return (
        f"cluster {identity.cluster_id}, generation {identity.generation}, revision {known.revision}: etcd has all "
        f"that {terminal.counted(len({one.broker_id for one in seen}), 'broker')} remember of it"
    )


def _lost(facts: ClusterFacts) -> str:
    """Return what a recovery would put back, by the rules of the recovery itself."""
    known = facts.known
    if known is None or not known.memories:
        return ""
    planned = plan_recovery(
        known.identity, known.stored, known.memories, known.claims, damaged=known.unreadable, now_ms=facts.now_ms
    )
    missing = [str(topic.topic) for topic in planned.topics if topic.is_missing]
    parts = [f"it lacks {_counted_some(missing, 'topic')}"] if missing else []
    if planned.epochs:
        parts.append(f"{terminal.counted(len(planned.epochs), 'partition')} had newer owners")
    return f"; {', '.join(parts)}" if parts else ""


def check_topics(facts: ClusterFacts) -> list[CheckResult]:
    """Check that no topic of the newest memories has vanished without a delete mark."""
    known = facts.known
    if known is None or not known.memories:
        return []
    newest = max(known.memories, key=lambda memory: (memory.seen.generation, memory.seen.revision))
    there = set(partitions_of(known.stored).values())
    remembered = partitions_of(merged([newest]))
    vanished = sorted(
        {
            str(partition.topic)
            for partition, topic_id in remembered.items()
            if topic_id not in there and keys.deleted(topic_id) not in known.stored
        }
    )
    found = []
    if vanished:
        found.append(
            CheckResult(
                check="topics",
                grade=Grade.FAIL,
                found=f"{_counted_some(vanished, 'topic')} vanished from etcd without a delete mark",
                advice=f"put them back: {_recover(facts)}",
            )
        )
    return _result("topics", found, f"{terminal.counted(len(there), 'topic')}, none vanished without a delete mark")


def check_epochs(facts: ClusterFacts) -> list[CheckResult]:
    """Check that no archive was claimed in an epoch that etcd never had, or has for another broker."""
    found: list[tuple[str, str]] = []
    recover = f"etcd went back: {_recover(facts)}"
    for partition, claim in sorted((facts.known.claims if facts.known is not None else {}).items()):
        assert facts.known is not None
        entry = facts.known.stored.get(keys.epoch(partition))
        given = METADATA.decode(entry, EpochEntry, keys.epoch(partition)) if entry is not None else None
        if given is None or claim.epoch > given.epoch:
            has = "none" if given is None else given.epoch
            by = f" by {claim.broker_id}" if claim.broker_id else ""
            found.append((f"{partition}: epoch {claim.epoch} was claimed{by} in the archive, etcd has {has}", recover))
        elif claim.epoch == given.epoch and claim.broker_id not in (None, given.broker_id):
            what = f"{partition}: epoch {claim.epoch} belongs to {given.broker_id} in etcd, and was claimed by"
            found.append((f"{what} {claim.broker_id} in the archive", recover))
    said = [trouble for trouble in _troubles(facts, WENT_BACK, *EPOCH_TROUBLES) if trouble[1].partition is not None]
    found += [(f"{_place(trouble)} at {broker}: {trouble.what}", recover) for broker, trouble in said]
    if facts.known is None and not _answering(facts):
        return []
    findings = list(_each("epochs", Grade.FAIL, found, len(found), "partitions have two claims"))
    return _result("epochs", findings, "no partition has two claims")


# Partitions


def check_archive(facts: ClusterFacts) -> list[CheckResult]:
    """Check that the archive has all records that were reported as archived."""
    if facts.objects is None:
        return []
    if facts.objects_error is not None:
        advice = "check --objects, --objects-endpoint and the credentials in the environment"
        found = f"cannot read {facts.objects}: {facts.objects_error}"
        advice = remedy(facts.objects_error, advice)
        return [CheckResult(check="archive", grade=Grade.FAIL, found=found, advice=advice)]
    if facts.known is None:
        what, advice = "not checked, because there is no etcd to compare with", "name an etcd with --metadata"
        return [CheckResult(check="archive", grade=Grade.WARN, found=what, advice=advice)]
    lacking: list[tuple[str, str]] = []
    for partition, view in sorted(facts.known.archives.items()):
        end = End(view.next_offset, view.log_version, view.epoch)
        if (lacks := _lacks(facts.known, partition, ARCHIVE, end, is_only_here=False)) is not None:
            lacking.append((f"{partition}: {lacks}", _give_up("objects", partition)))
    lacking += [
        (f"{partition}: {error}", remedy(error, f"restore the objects of {partition} from a backup of the bucket"))
        for partition, error in sorted(facts.known.unreadable.items())
    ]
    findings = list(_each("archive", Grade.FAIL, lacking, len(lacking), "partitions with records missing"))
    count = terminal.counted(len(facts.known.archives), "partition")
    return _result("archive", findings, f"complete for {count}")


def _lacks(known: Known, partition: PartitionName, where: str, end: End, *, is_only_here: bool) -> str | None:
    """Return which reported records a log lacks, by the rule by which a broker opens it."""
    reports = known.reports.get(partition)
    if reports is None:
        return None
    topic_id = partitions_of(
        {key: known.stored[key] for key in [keys.delivery(partition.topic)] if key in known.stored}
    )
    current = reports.current
    if current is not None and current.topic_id not in (None, topic_id.get(partition)):
        current = None  # from a topic that had this name before
    heard = witnesses(reports.sealed, current, is_only_here=is_only_here)
    try:
        check_witnesses(str(partition), where, heard, end)
    except LogIncomplete as error:
        return error.lacks
    return None


def _give_up(what: str, partition: PartitionName) -> str:
    return (
        f"restore the {what}, and the partition opens by itself; or discard exactly these records: "
        f"sulina topic unload {partition.topic} --partition {partition.partition} --give-up"
    )


def check_disk_logs(facts: ClusterFacts) -> list[CheckResult]:
    """Check that the logs in a data directory reach as far as their broker reported."""
    disk, known = facts.disk, facts.known
    if disk is None:
        return []
    lacking: list[tuple[str, str]] = []
    if disk.damage is not None:
        advice = "its broker writes it again when it runs; until then leave --data out of sulina cluster recover"
        found = f"the memory of the cluster in {disk.path} cannot be read: {disk.damage}"
        lacking.append((found, remedy(disk.damage, advice)))
    if known is None:
        return list(_each("disk logs", Grade.FAIL, lacking, len(lacking), "memories cannot be read"))
    for partition, end in sorted(disk.ends.items()):
        entry = known.stored.get(keys.epoch(partition))
        newest = METADATA.decode(entry, EpochEntry, keys.epoch(partition)) if entry is not None else None
        if newest is None or newest.store_id != disk.store_id or newest.is_archived:
            continue  # another broker has taken over, or the archive has all records
        end = End(
            end.next_offset, end.version, max(end.epoch, Epoch(newest.epoch))
        )  # the claim is newer than its commits
        if (lacks := _lacks(known, partition, DIRECTORY, end, is_only_here=True)) is not None:
            lacking.append((f"{partition} in {disk.path}: {lacks}", _give_up("newer copy of the disk", partition)))
    findings = list(_each("disk logs", Grade.FAIL, lacking, len(lacking), "logs end before their last report"))
    return _result("disk logs", findings, f"{terminal.counted(len(disk.ends), 'log')} in {disk.path} complete")


def check_partitions(facts: ClusterFacts) -> list[CheckResult]:
    """Check that the owner of every partition accepts records."""
    nodes = _answering(facts)
    if not nodes:
        return []
    apart = {*UNREADY, *EPOCH_TROUBLES, *ELSEWHERE}
    kinds = sorted({kind for node in nodes for kind in node.trouble_counts} - apart)
    found: list[CheckResult] = []
    for kind in kinds:
        items = [
            (f"{_place(one)} at {broker}: {one.what}", _remedy(kind, one)) for broker, one in _troubles(facts, kind)
        ]
        found += _each("partitions", Grade.FAIL, items, _count(facts, kind), f"partitions with {kind}")
    served = facts.cluster.partitions if facts.cluster is not None else 0
    return _result("partitions", found, f"{terminal.counted(served, 'partition')}, none closed by an error")


ELSEWHERE = (TroubleKind.CONSUMER_LATE, TroubleKind.DIRECTORY_ORPHANED, TroubleKind.DIRECTORY_SET_ASIDE)


def _remedy(kind: str, trouble: Trouble) -> str:
    if kind == LogIncomplete.code:
        return _give_up("disk or objects that have them", PartitionName(*_names(trouble)))
    if kind in STOPPED:
        first = "free space on that disk" if kind == TroubleKind.DISK_FULL else "correct that fault"
        return f"{first}, and it opens by itself; or move it: sulina topic move {trouble.topic} --to BROKER"
    return "the broker tries again every second; its log says more"


def _names(trouble: Trouble) -> tuple[TopicName, int]:
    return TopicName.parse(trouble.topic or ""), trouble.partition or 0


def check_owners(facts: ClusterFacts) -> list[CheckResult]:
    """Check that every partition has an owner, and name the broker that a recovering one waits for."""
    cluster = facts.cluster
    if cluster is None:
        return []
    by_broker: defaultdict[str, list[str]] = defaultdict(list)
    for waiting in cluster.waiting:
        if waiting.waits_for is not None:
            by_broker[waiting.waits_for].append(f"{waiting.topic}/{waiting.partition}")
    named = sum(map(len, by_broker.values()))
    more = f" (of {cluster.recovering:,} that wait)" if cluster.recovering > named else ""
    items = []
    for broker, names in sorted(by_broker.items()):
        topic, _, number = names[0].rpartition("/")
        what = f"{_counted_some(names, 'partition')} recovering{more}: only the disk of {broker} has all records"
        give_up = f"sulina topic move {topic} --partition {number} --to BROKER --force"
        items.append((what, f"start {broker}; or discard the records that only it has: {give_up}"))
    found = list(_each("owners", Grade.FAIL, items, len(items), "brokers that partitions wait for"))
    late = [one for one in cluster.waiting if one.waits_for is None and one.since_seconds >= WAITS_SECONDS_MAX]
    if late:
        names = [f"{one.topic}/{one.partition}" for one in late]
        longest = terminal.seconds_text(max(one.since_seconds for one in late))
        found.append(
            CheckResult(
                check="owners",
                grade=Grade.FAIL,
                found=f"{_counted_some(names, 'partition')} without an owner for {longest}",
                advice="start a broker, or activate a drained one: sulina broker activate BROKER",
                figures={"unassigned": float(cluster.unassigned)},
            )
        )
    return _result("owners", found, f"{terminal.counted(cluster.partitions, 'partition')}, none waits for an owner")


def check_moves(facts: ClusterFacts) -> list[CheckResult]:
    """Check that moves and drains make progress."""
    cluster = facts.cluster
    if cluster is None:
        return []
    stuck = [one for one in cluster.unloads if one.error or (one.since_seconds or 0.0) >= MOVES_SECONDS_MAX]
    items = [(_stuck(one), f"remove the cause, or cancel it: sulina topic cancel-move {one.topic}") for one in stuck]
    found = list(_each("moves", Grade.WARN, items, len(items), "moves fail or hang"))
    found += [
        CheckResult(
            check="moves",
            grade=Grade.WARN,
            found=f"{info.broker_id} is draining, and has {terminal.counted(info.partitions, 'partition')} left",
            advice=f"start another broker, or stop draining: sulina broker activate {info.broker_id}",
        )
        for info in cluster.brokers
        if info.state == "draining" and info.partitions and _hangs(cluster, info)
    ]
    return _result("moves", found, f"{len(cluster.unloads)} under way, none fails or hangs")


def _stuck(one: UnloadInfo) -> str:
    to = f" to {one.to_broker}" if one.to_broker else ""
    since = f" for {terminal.seconds_text(one.since_seconds)}" if one.since_seconds else ""
    why = f": {one.error}" if one.error else ""
    return f"{one.topic}/{one.partition} is leaving {one.from_broker}{to}{since}, {one.step}{why}"


def _hangs(cluster: ClusterInfo, broker: BrokerInfo) -> bool:
    """Return whether a drain hangs: no other broker is active, or a move fails or is old."""
    moves = [one for one in cluster.unloads if one.from_broker == broker.broker_id]
    if not any(info.state == "active" for info in cluster.brokers):
        return True
    return any(one.error or (one.since_seconds or 0.0) >= MOVES_SECONDS_MAX for one in moves)


# Directories, discarded records, dead letters, consumers


def check_directories(facts: ClusterFacts) -> list[CheckResult]:
    """Check for directories that an operator has to look at."""
    orphaned = [f"{one.what} at {broker}" for broker, one in _troubles(facts, TroubleKind.DIRECTORY_ORPHANED)]
    aside = [f"{one.what} at {broker}" for broker, one in _troubles(facts, TroubleKind.DIRECTORY_SET_ASIDE)]
    stores = {node.store_id for node in _answering(facts)}
    if facts.disk is not None and (facts.disk.store_id is None or facts.disk.store_id not in stores):
        orphaned += [f"{facts.disk.path}/{name}" for name in facts.disk.orphaned]
        aside += [f"{facts.disk.path}/{name}" for name in facts.disk.set_aside]
    elif not stores:
        return []
    found = []
    if orphaned:
        found.append(
            CheckResult(
                check="directories",
                grade=Grade.FAIL,
                found=f"orphaned, because the topic vanished from etcd without a delete mark: {_some(orphaned)}",
                advice=f"put the topic back, and they are used again: {_recover(facts)}; or delete them",
                figures={"count": float(len(orphaned))},
            )
        )
    if aside:
        found.append(
            CheckResult(
                check="directories",
                grade=Grade.WARN,
                found=f"set aside, with records that are nowhere else: {_some(aside)}",
                advice="another owner continued without them: inspect a copy with sulina serve, then delete them",
                figures={"count": float(len(aside))},
            )
        )
    return _result("directories", found, "none is orphaned or set aside")


def check_given_up(facts: ClusterFacts) -> list[CheckResult]:
    """Check for records that were given up lately."""
    if facts.known is None:
        return []
    given = [(one, name) for name, reports in facts.known.reports.items() for one in reports.given_up]
    given.sort(key=lambda each: (-each[0].at_ms, each[1]))
    news = [_given_up(facts, name, one) for one, name in given if _age(facts, one) < GIVEN_UP_SECONDS]
    advice = "they cannot be restored in place; if a disk or a backup has them, publish them again"
    found = []
    if news:
        found.append(CheckResult(check="given up", grade=Grade.WARN, found=_some(news), advice=advice))
    ranges = terminal.counted(len(given), "range")
    return _result("given up", found, f"{ranges} on record, none in the last 7 days")


def _age(facts: ClusterFacts, one: GivenUp) -> float:
    return (facts.now_ms - one.at_ms) / 1000


def _given_up(facts: ClusterFacts, partition: PartitionName, one: GivenUp) -> str:
    end = "…" if one.end is None else one.end
    ago = terminal.seconds_text(max(0.0, _age(facts, one)))
    return f"{partition}: records [{one.start}, {end}) were given up {ago} ago, because {one.reason}"


def check_dead_letters(facts: ClusterFacts) -> list[CheckResult]:
    """Check that dead-letter topics exist and do not form a circle."""
    policies = facts.policies
    if policies is None:
        return []
    endless: dict[frozenset[TopicName], tuple[str, str]] = {}
    absent: list[tuple[TopicName, TopicName]] = []
    for topic, policy in sorted(policies.items()):
        if policy.dead_letter is None or is_end(topic, policy):
            continue
        if (target := dead_letter_topic(topic, policy)) not in policies:
            absent.append((topic, target))
        if way := _endless(topic, policies):
            shown = " → ".join(map(str, way))
            advice = f"name another topic in the policy of one: sulina topic create {way[0]} --dead-letter TOPIC …"
            endless.setdefault(
                frozenset(way), (f"dead-letter topics form a circle, or too long a chain: {shown}", advice)
            )
    found = list(_each("dead letters", Grade.FAIL, [*endless.values()], len(endless), "circles of dead letters"))
    if absent:
        names = [f"{target} of {topic}" for topic, target in absent]
        found.append(
            CheckResult(
                check="dead letters",
                grade=Grade.WARN,
                found=f"{_counted_some(names, 'dead-letter topic')} missing",
                advice="created with defaults when first needed; to choose settings: "
                f"sulina topic create {absent[0][1]} …",
            )
        )
    return _result("dead letters", found, "all end in a topic that exists")


def _endless(topic: TopicName, policies: Mapping[TopicName, Policy]) -> list[TopicName]:
    """Return the circle of dead-letter topics that `topic` leads to, by the rule that refuses such policies."""
    way = [topic]
    while (policy := policies.get(way[-1])) is not None and not is_end(way[-1], policy):
        way.append(dead_letter_topic(way[-1], policy))
        try:
            check_way(way)
        except InvalidSettings:
            return way[way.index(way[-1]) :] if way[-1] in way[:-1] else way  # without the topics before the circle
    return []


def check_consumers(facts: ClusterFacts) -> list[CheckResult]:
    """Check that consumers ack in time."""
    if not _answering(facts):
        return []
    late = Counter(f"{_place(one)}: {one.what}" for _, one in _troubles(facts, TroubleKind.CONSUMER_LATE))
    advice = "restart or fix that consumer; in a shared subscription, others get its records meanwhile"
    items = [(what, advice) for what in late]
    findings = list(_each("consumers", Grade.WARN, items, len(items), "consumers do not ack"))
    return _result("consumers", findings, "all ack in time")


CHECKS: list[Callable[[ClusterFacts], list[CheckResult]]] = [
    check_brokers,
    check_leader,
    check_etcd,
    check_history,
    check_topics,
    check_epochs,
    check_archive,
    check_disk_logs,
    check_partitions,
    check_owners,
    check_moves,
    check_clocks,
    check_disks,
    check_directories,
    check_given_up,
    check_dead_letters,
    check_consumers,
]

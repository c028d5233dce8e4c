"""A world for fan-out and attempts: nodes, links that break, subscribers; and a model that follows every one of them.

The owner is node `a`; `b` and `c` are reached over links that keep the order and lose what is on its way when they are
cut. What is checked: nothing reaches who is no subscriber, or before it was accepted; the order holds; what was acked
does not come again; who is active misses nothing; what waits is sent in order; events, statuses and counts agree.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from sulina.core.delivery.attempts import REMEMBERED_MAX, DeliverTo, NodeAttempts, SendReport
from sulina.core.delivery.fan_out import Effect, EmitEvent, FanOut, Payload, RemoveSubscriber, ResumeAt, Send
from sulina.core.delivery.pubsub import (
    DeliveryPolicy,
    DeliveryReport,
    PartitionBehavior,
    PubSubConfig,
    SubscriberId,
    SubscriberStatus,
    TopicOptions,
)
from sulina.core.delivery.pubsub import PubSubEventType as Event
from sulina.errors import DelayQueueFull, LimitReached, NoSubscribers, PartitionDropped, SulinaError

CONFIG = PubSubConfig(
    subscriber_timeout_seconds=5,
    suspended_ttl_seconds=20,
    backoff_seconds=0.5,
    backoff_seconds_max=4,
    delay_queue_bytes_max=60,
    delay_queue_batches_max=4,
    unacked_bytes_max=240,
    unacked_batches_max=8,
    subscribers_max=6,
)
OPTIONS = [TopicOptions(delivery_policy=p, partition_behavior=b) for p in DeliveryPolicy for b in PartitionBehavior]
OWNER = "a"
NODES = ["a", "b", "c"]


@dataclass(eq=False)
class Sub:
    """A subscriber, by what it saw itself."""

    node: str
    handle: int
    start: int | None  # None: the end
    begin: int | None = None  # where it was let in first
    hands: list[tuple[int, list[int]]] = field(default_factory=list)  # attempt, offsets: what it has, or had
    given: list[int] = field(default_factory=list)  # first offsets of batches
    acked: set[int] = field(default_factory=set)
    has_failed: bool = False
    is_over: bool = False

    @property
    def name(self) -> str:
        return f"{self.node}{self.handle}"


@dataclass(eq=False)
class Home:
    """A node: its subscribers, its attempts, and both directions of its link."""

    name: str
    attempts: NodeAttempts
    is_up: bool = False
    is_blocked: bool = False
    has_restarted: bool = True
    subs: dict[int, Sub] = field(default_factory=dict)
    inbox: deque[Any] = field(default_factory=deque)  # from the owner
    outbox: deque[Any] = field(default_factory=deque)


@dataclass(eq=False)
class Batch:
    """As the model knows one that was accepted by a topic that keeps nothing."""

    payload: Payload
    handles: set[int]  # for whom it still is
    is_kept: bool


class World:
    """Everything that can happen, in any order. Where one of several is meant, it is the `which`th, modulo."""

    def __init__(self, is_reliable: bool, nodes: list[str], eager: set[str]) -> None:
        self.is_reliable = is_reliable
        self.eager = sorted(eager)  # nodes to which links are quick
        self.now = 0.0
        self.fan_out = FanOut(CONFIG, is_reliable=is_reliable, local=OWNER)
        self.homes = {name: Home(name, self._attempts()) for name in NODES}
        self.homes[OWNER].is_up = True
        self.handles = 0
        self.log: list[tuple[int, int]] = []  # batches: where each ends, its bytes
        self.log_start = 0
        self.members: dict[str, dict[int, SubscriberStatus]] = {name: {} for name in NODES}  # by events
        self.names: dict[str, Sub] = {}
        self.must_resume: set[str] = set()
        self.audience: dict[int, set[str]] = {}  # of a topic that keeps nothing, by a batch's offset
        self.waiting: dict[str, list[Batch]] = {name: [] for name in NODES}
        self.flying: dict[str, dict[int, Batch]] = {name: {} for name in NODES}
        self.sent: dict[tuple[str, int], Send] = {}
        self.highest: Counter[str] = Counter()
        self.events: Counter[Event] = Counter()
        self.delivered = 0
        self.failed: Counter[str] = Counter()
        self._heal(self.homes["b"])
        self._heal(self.homes["c"])
        for node in nodes:
            self.subscribe(node, False)
            self.to_owner(node, 1)
            self.to_node(node, 2)

    def _attempts(self) -> NodeAttempts:
        return NodeAttempts(CONFIG, is_reliable=self.is_reliable, epoch=1)

    @property
    def end(self) -> int:
        return self.log[-1][0] if self.log else 0

    # Effects

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._sent(effect)
                case ResumeAt(node, handles):
                    assert self.homes[node].is_up
                    self.must_resume -= {f"{node}{handle}" for handle in handles}
                    self.homes[node].inbox.append(("resume", handles))
                case RemoveSubscriber(member, _):
                    if self.homes[member.node].is_up:
                        self.homes[member.node].inbox.append(("removed", member.handle))
                case EmitEvent(type_, fields):
                    self.events[type_] += 1
                    self._told(type_, fields)

    def _sent(self, send: Send) -> None:
        home, key = self.homes[send.node], (send.node, send.attempt)
        assert home.is_up, "sent to a node that cannot be reached"
        active = {h for h, status in self.members[send.node].items() if status == SubscriberStatus.ACTIVE}
        assert send.handles, "sent for nobody"
        assert set(send.handles) <= active, "sent to one that is suspended, or no subscriber"
        assert len(set(send.handles)) == len(send.handles)
        assert not {f"{send.node}{handle}" for handle in send.handles} & self.must_resume
        if key in self.sent:
            assert not self.is_reliable
            before = self.sent[key]
            assert before.payload is send.payload
            assert set(send.handles) <= set(before.handles)
        else:
            assert send.attempt > self.highest[send.node], "attempts out of order"
            self.highest[send.node] = send.attempt
        self.sent[key] = send
        home.inbox.append(("deliver", send))

    def _told(self, type_: Event, fields: dict[str, Any]) -> None:
        if type_ == Event.DELIVERY_SUCCEEDED:
            self.delivered += fields["subscribers"] * fields["count"]
            self._check_honest(fields)
        elif type_ == Event.DELIVERY_FAILED:
            self.failed[fields["status"]] += fields["count"] * fields.get("subscribers", 1)
            assert not self.is_reliable or "unacked" not in fields["reason"], "a log waits for the slow"
        if "subscriber" not in fields:
            return
        sub = self.names[fields["subscriber"]]
        members = self.members[sub.node]
        if type_ == Event.SUBSCRIBER_ADDED:
            assert sub.handle not in members
            members[sub.handle] = SubscriberStatus.ACTIVE
        elif type_ == Event.SUBSCRIBER_REMOVED:
            del members[sub.handle]
            sub.has_failed = True
            for batch in [*self.waiting[sub.node], *self.flying[sub.node].values()]:
                batch.handles.discard(sub.handle)
            if not members:
                self.waiting[sub.node].clear()
        elif type_ == Event.SUBSCRIBER_SUSPENDED:
            members[sub.handle] = SubscriberStatus.SUSPENDED
            self.must_resume.add(sub.name)
        elif type_ == Event.SUBSCRIBER_RESUMED:
            assert members[sub.handle] == SubscriberStatus.SUSPENDED
            assert sub.name not in self.must_resume
            members[sub.handle] = SubscriberStatus.ACTIVE
        elif type_ == Event.DELIVERY_FAILED:
            assert members[sub.handle] == SubscriberStatus.ACTIVE
            sub.has_failed = True
            for batch in self.flying[sub.node].values():
                batch.handles.discard(sub.handle)

    def _check_honest(self, fields: dict[str, Any]) -> None:
        """Who is counted as having taken a batch has acked all of it, or has left."""
        send = self.sent[fields["node"], fields["attempt"]]
        took = 0
        for handle in send.handles:
            sub = self.names[f"{send.node}{handle}"]
            mine = range(max(send.payload.start, sub.begin or 0), send.payload.end)
            took += sub.is_over or sub.acked.issuperset(mine)
        assert fields["subscribers"] <= took, "counted as delivered without an ack"

    # Subscribers come and go

    def subscribe(self, node: str, from_start: bool) -> None:
        self.handles += 1
        home = self.homes[node]
        sub = Sub(node, self.handles, 0 if from_start else None)
        home.subs[sub.handle] = self.names[sub.name] = sub
        self._join(home, sub)

    def _join(self, home: Home, sub: Sub) -> None:
        if home.is_up:
            offset = home.attempts.position(sub.handle)
            home.outbox.append(("join", sub, sub.begin if offset is None else offset))

    def _subs(self) -> list[Sub]:
        return [sub for home in self.homes.values() for sub in home.subs.values()]

    def go(self, which: int, how: str) -> None:
        """It leaves, or its connection with its home breaks; it may be back before anybody notices."""
        if not (subs := self._subs()):
            return
        sub = subs[which % len(subs)]
        home = self.homes[sub.node]
        if how == "leaves":
            self._end(sub)
            self._report(home, home.attempts.remove(sub.handle, self.now))
            if home.is_up:
                home.outbox.append(("leave", sub))
        else:
            sub.has_failed = True
            self._report(home, home.attempts.disconnected(sub.handle, self.now))
            if how == "comes back":
                self._join(home, sub)

    def _end(self, sub: Sub) -> None:
        sub.is_over = True
        self.homes[sub.node].subs.pop(sub.handle, None)

    # Subscribers take batches

    def settle(self, which: int, how: str) -> None:
        if not (subs := [sub for sub in self._subs() if sub.hands]):
            return
        sub = subs[which % len(subs)]
        for _ in range(len(sub.hands) if how == "acks all" else 1):
            self._settle(sub, which % len(sub.hands) if how == "acks any" else 0, is_ack=how != "fails")

    def _settle(self, sub: Sub, index: int, *, is_ack: bool) -> None:
        attempt, offsets = sub.hands.pop(index)
        attempts = self.homes[sub.node].attempts
        counts, late = attempts.holds(sub.handle, attempt), attempts.late_acks
        if is_ack:
            sub.acked |= set(offsets) if counts else set()
            reports = attempts.acked(sub.handle, attempt, self.now)
            assert attempts.late_acks == late + (not counts)
        else:
            reports = attempts.failed(sub.handle, attempt, "it raised", self.now)
        assert counts or not reports, "a late ack credits nothing"
        assert not attempts.holds(sub.handle, attempt)
        self._report(self.homes[sub.node], reports)

    def _report(self, home: Home, reports: list[SendReport]) -> None:
        if home.is_up:
            home.outbox.extend(("report", report.report) for report in reports)

    def _handed(self, sub: Sub, hand: DeliverTo, payload: Payload) -> None:
        offsets = [o for low, high in hand.ranges for o in range(low, high)]
        assert offsets
        assert payload.start <= offsets[0]
        assert offsets[-1] < payload.end
        if self.is_reliable:
            holds = self.homes[sub.node].attempts.holds
            has = {o for attempt, held in sub.hands if holds(sub.handle, attempt) for o in held}
            assert not sub.acked & set(offsets), "what was acked comes again"
            assert not has & set(offsets), "what it has comes again"
            assert sub.begin is not None
            before = range(max(sub.begin, self.log_start), offsets[0])
            assert all(o in sub.acked or o in has for o in before), "there is a gap"
        else:
            assert sub.name in self.audience[payload.start], "not for it"
            assert not sub.given or sub.given[-1] < payload.start, "twice, or out of order"
        sub.given.append(payload.start)
        sub.hands.append((hand.attempt, offsets))

    # Links

    def to_node(self, node: str, count: int) -> None:
        home = self.homes[node]
        for _ in range(min(count, len(home.inbox))):
            self._arrived(home, *home.inbox.popleft())

    def _arrived(self, home: Home, kind: str, what: Any, offset: int | None = None) -> None:
        if kind == "deliver":
            for step in home.attempts.deliver(
                what.attempt, what.payload.start, what.payload.end, what.payload.size_bytes, what.handles, self.now
            ):
                if isinstance(step, DeliverTo):
                    self._handed(home.subs[step.handle], step, what.payload)
                else:
                    self._report(home, [step])
        elif kind == "resume":
            self._report(home, home.attempts.resume(what))
        elif kind == "joined" and what in home.subs:
            home.attempts.add(what, offset)
        elif kind == "removed" and what in home.subs:
            sub = home.subs[what]
            self._report(home, home.attempts.disconnected(what, self.now))
            if what % 2:
                self._end(sub)
                self._report(home, home.attempts.remove(what, self.now))
            else:
                self._join(home, sub)

    def to_owner(self, node: str, count: int) -> None:
        home = self.homes[node]
        for _ in range(min(count, len(home.outbox))):
            kind, *rest = home.outbox.popleft()
            if kind == "join":
                self._joins(home, *rest)
            elif kind == "leave":
                self.do(self.fan_out.remove(SubscriberId(node, rest[0].handle), self.now))
            else:
                self._reported(node, *rest)

    def _joins(self, home: Home, sub: Sub, offset: int | None) -> None:
        known = sub.begin if offset is None else offset
        begin = max(self.log_start, known if known is not None else self.end if sub.start is None else sub.start)
        member = SubscriberId(home.name, sub.handle)
        try:
            self.do(self.fan_out.add(member, sub.name, begin if self.is_reliable else None, self.now))
        except LimitReached:
            assert sum(map(len, self.members.values())) == CONFIG.subscribers_max
            self._end(sub)
            return
        sub.begin = begin if sub.begin is None else sub.begin
        home.inbox.append(("joined", sub.handle, begin if self.is_reliable else None))

    def _reported(self, node: str, report: DeliveryReport) -> None:
        is_known = report.attempt in self.flying[node] or self.is_reliable
        effects = self.fan_out.reported(node, report, self.now)
        assert is_known or not effects
        self._flushed(self.homes[node], effects)
        self.flying[node].pop(report.attempt, None)

    def cut_or_heal(self, node: str, restarts: bool) -> None:
        if self.homes[node].is_up:
            self._cut(self.homes[node], restarts)
        else:
            self._heal(self.homes[node])
        self._hurry()

    def _hurry(self) -> None:
        for node in self.eager:
            while self.is_reliable and self._read(2, True):
                pass
            self.to_node(node, 1000)

    def _cut(self, home: Home, restarts: bool) -> None:
        home.is_up = home.is_blocked = False
        home.inbox.clear()
        home.outbox.clear()
        flying = self.flying[home.name]
        self.do(self.fan_out.node_down(home.name, self.now, "the connection was cut"))
        again = [batch for batch in flying.values() if batch.is_kept]
        for batch in flying.values():
            if not batch.is_kept:  # it may have been lost
                self.audience[batch.payload.start] -= {f"{home.name}{handle}" for handle in batch.handles}
        self.waiting[home.name][:0] = again if self.members[home.name] else []
        flying.clear()
        if restarts:
            for sub in list(home.subs.values()):
                self._end(sub)
            home.attempts, home.has_restarted = self._attempts(), True

    def _heal(self, home: Home) -> None:
        home.is_up = True
        self._flushed(home, self.fan_out.node_up(home.name, self.now, has_restarted=home.has_restarted))
        home.has_restarted = False
        for sub in home.subs.values():
            self._join(home, sub)

    def _flushed(self, home: Home, effects: list[Effect]) -> None:
        """What waited, and nothing else, was sent in its order: all of it, or what fits, while more is on its way."""
        sent = [effect for effect in effects if isinstance(effect, Send)]
        self.do(effects)
        active = {h for h, status in self.members[home.name].items() if status == SubscriberStatus.ACTIVE}
        waiting, node = self.waiting[home.name], self.fan_out.nodes.get(home.name)
        left = len(node.queue) if node is not None else 0
        assert not left or home.is_blocked or not home.is_up or (node is not None and node.pending), "it waits for ever"
        gone, self.waiting[home.name] = waiting[: len(waiting) - left], waiting[len(waiting) - left :]
        expected = [(batch.payload.start, batch.handles & active, batch) for batch in gone]
        expected = [entry for entry in expected if entry[1]]
        assert [(send.payload.start, set(send.handles)) for send in sent] == [entry[:2] for entry in expected]
        for send, (_, handles, batch) in zip(sent, expected, strict=True):
            batch.handles = handles
            self.flying[home.name][send.attempt] = batch

    def block(self, node: str, is_blocked: bool) -> None:
        home = self.homes[node]
        if is_blocked:
            self.fan_out.node_blocked(node)
            home.is_blocked = home.is_up
        elif home.is_blocked:
            home.is_blocked = False
            self._flushed(home, self.fan_out.node_ready(node, self.now))

    # Publishing

    def publish(self, options: TopicOptions, sizes: list[int]) -> None:
        for size in sizes:
            self._publish(options, Payload(self.end, self.end + 1 + size % 3, memoryview(bytes(size))))
            self._hurry()

    def _publish(self, options: TopicOptions, payload: Payload) -> None:
        if not self.is_reliable:
            before = (self.fan_out.info(), self.fan_out.waiting_bytes, dict(self.highest))
            expected = self._expected(payload, options)
            try:
                effects = self.fan_out.publish(payload, options, self.now)
            except (NoSubscribers, PartitionDropped, DelayQueueFull) as error:
                refused: type[SulinaError] | None = type(error)
            else:
                refused = None
            assert refused is expected
            if refused is not None:
                assert before == (self.fan_out.info(), self.fan_out.waiting_bytes, dict(self.highest))
                return
            self._accepted(payload, options, effects)
        self.log.append((payload.end, payload.size_bytes))

    def _targets(self) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
        ready: dict[str, set[int]] = {}
        away: dict[str, set[int]] = {}
        for name, home in self.homes.items():
            is_ready = home.is_up and not home.is_blocked and not self.waiting[name]
            members = self.members[name]
            handles = {h for h in members if not home.is_up or members[h] == SubscriberStatus.ACTIVE}
            if handles:
                (ready if is_ready else away)[name] = handles
        return ready, away

    def _expected(self, payload: Payload, options: TopicOptions) -> type[SulinaError] | None:
        ready, away = self._targets()
        if not ready and not away:
            return NoSubscribers
        if not options.keeps_for_unreachable:
            return None if ready else PartitionDropped
        is_full = [not self._has_room(name, payload.size_bytes) for name in away]
        return DelayQueueFull if any(is_full) else None

    def _has_room(self, node: str, size: int) -> bool:
        kept = [batch for batch in [*self.waiting[node], *self.flying[node].values()] if batch.is_kept]
        total = sum(batch.payload.size_bytes for batch in kept) + size
        return not kept or (len(kept) < CONFIG.delay_queue_batches_max and total <= CONFIG.delay_queue_bytes_max)

    def _accepted(self, payload: Payload, options: TopicOptions, effects: list[Effect]) -> None:
        ready, away = self._targets()
        sent = {effect.node: effect for effect in effects if isinstance(effect, Send)}
        assert len(sent) == sum(isinstance(effect, Send) for effect in effects), "one for each node"
        assert {name: set(send.handles) for name, send in sent.items()} == ready
        is_sent_again = options.delivery_policy == DeliveryPolicy.AT_LEAST_ONCE
        for name, send in sent.items():
            kept = is_sent_again and name != OWNER and self._has_room(name, payload.size_bytes)
            self.flying[name][send.attempt] = Batch(payload, set(ready[name]), kept)
        audience = {f"{name}{h}" for name, handles in ready.items() for h in handles}
        told = Counter(effect.type for effect in effects if isinstance(effect, EmitEvent))
        if options.keeps_for_unreachable:
            assert told == ({Event.BATCH_QUEUED: len(away)} if away else {})
            audience |= {f"{name}{h}" for name, handles in away.items() for h in handles}
            for name, handles in away.items():
                self.waiting[name].append(Batch(payload, set(handles), True))
        else:
            assert told == ({Event.BATCH_DROPPED: len(away)} if away else {})
        self.audience[payload.start] = audience
        self.do(effects)

    def feed(self, reads: int, batches: int, is_early: bool) -> None:
        for _ in range(reads if self.is_reliable else 0):
            self._read(batches, is_early)

    def _read(self, batches: int, is_early: bool) -> bool:
        wanted = self.fan_out.wanted(self.end)
        if wanted is None:
            return False
        assert wanted < self.end
        if wanted < self.log_start:
            assert self.fan_out.skip_to(self.log_start) > 0
            return True
        starts = [0, *(end for end, _ in self.log)]
        first = next(n for n, (end, _) in enumerate(self.log) if end > wanted)
        found = self.log[first : first + batches]
        start = starts[first] if is_early else wanted  # whole batches may begin before what is wanted
        payload = Payload(start, found[-1][0], memoryview(bytes(sum(size for _, size in found))))
        effects = self.fan_out.read(payload, self.now)
        sent = [effect for effect in effects if isinstance(effect, Send)]
        assert len({send.node for send in sent}) == len(sent), "one for each node"
        assert not any(self.homes[send.node].is_blocked for send in sent)
        self.do(effects)
        return True

    def retain(self, kept: int) -> None:
        if self.is_reliable:
            self.log_start = max([self.log_start, *(end for end, _ in self.log[: -1 - kept])])

    # Time

    def pass_time(self, seconds: float) -> None:
        self._pass_time(seconds)
        self._hurry()

    def _pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.fan_out.tick(self.now))
        due = self.fan_out.next_tick()
        assert due is None or due > self.now
        for home in self.homes.values():
            self._report(home, home.attempts.tick(self.now))
            due = home.attempts.next_tick()
            assert due is None or due > self.now

    # What always holds

    def check(self) -> None:
        self.statuses_and_counts_agree()
        self.everything_is_bounded()

    def statuses_and_counts_agree(self) -> None:
        info = self.fan_out.info()
        told = {(node, h): status for node, members in self.members.items() for h, status in members.items()}
        assert {(one.node, one.handle): one.status for one in info} == told
        statuses = Counter(told.values())
        assert self.fan_out.active == statuses[SubscriberStatus.ACTIVE]
        assert self.fan_out.suspended == statuses[SubscriberStatus.SUSPENDED]
        for node, handle in told:
            assert self.homes[node].is_up or told[node, handle] == SubscriberStatus.SUSPENDED
        counts = self.fan_out.counts
        assert counts.queued_batches == self.events[Event.BATCH_QUEUED]
        assert counts.dropped_batches == self.events[Event.BATCH_DROPPED]
        assert counts.delivered_records == self.delivered
        assert {status: n for status, n in counts.failed_records.items() if n} == +self.failed

    def everything_is_bounded(self) -> None:
        assert self.fan_out.waiting_batches == sum(map(len, self.waiting.values()))
        for name, home in self.homes.items():
            node = self.fan_out.nodes.get(name)
            kept = [b for b in [*self.waiting[name], *self.flying[name].values()] if b.is_kept]
            if node is not None and not self.is_reliable:
                assert node.kept_batches == len(kept) <= CONFIG.delay_queue_batches_max
                assert node.kept_bytes == sum(batch.payload.size_bytes for batch in kept)
                assert node.kept_bytes <= CONFIG.delay_queue_bytes_max or len(kept) == 1
            assert len(home.attempts.remembered_failures) <= REMEMBERED_MAX
            for batches, size_bytes in home.attempts.unacked.values():
                assert batches <= CONFIG.unacked_batches_max
                assert size_bytes <= CONFIG.unacked_bytes_max or batches == 1
        assert self.fan_out.timers <= 2 * CONFIG.subscribers_max + 101

    # In the end

    def finish(self) -> None:
        """Everything heals, and everybody acks: then nobody has missed what was theirs."""
        for home in self.homes.values():
            if not home.is_up:
                self._heal(home)
            self.block(home.name, False)
        for _ in range(60):
            self.flow()
            if not self.fan_out.suspended and not any(home.inbox or home.outbox for home in self.homes.values()):
                break
            self._pass_time(0.5)
        assert not any(node.pending or node.queue for node in self.fan_out.nodes.values())
        assert not any(self.homes[name].attempts.unreported for name in NODES)
        for sub in self._subs():
            if sub.handle not in self.members[sub.node]:
                continue  # there was no room for it
            assert self.members[sub.node][sub.handle] == SubscriberStatus.ACTIVE
            if self.is_reliable:
                assert sub.begin is not None
                assert sub.acked >= set(range(max(sub.begin, self.log_start), self.end)), "not everything"
            elif not sub.has_failed:
                owed = [start for start, who in self.audience.items() if sub.name in who]
                assert [start for start in sub.given if start in owed] == owed, "not everything, or not in order"

    def flow(self) -> None:
        """All goes well."""
        for home in self.homes.values():
            self.to_owner(home.name, 1000)
        assert not self.is_reliable or not all(self._read(2, False) for _ in range(500)), "no progress"
        for home in self.homes.values():
            self.to_node(home.name, 1000)
            for sub in list(home.subs.values()):
                while sub.hands:
                    self._settle(sub, 0, is_ack=True)
            for sub in list(home.subs.values()):
                if sub.handle not in self.members[home.name]:
                    self._join(home, sub)

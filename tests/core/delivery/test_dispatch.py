"""The rules of delivery, against a model that follows every record: nothing lost, nothing doubled, order kept."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sulina.core.delivery.cursor import Cursor
from sulina.core.delivery.dispatch import Batch, Dispatch, DispatchRules, PlannedDelivery
from sulina.core.delivery.members import SLOTS, Member, Members, SubscriptionKind, slot_of
from sulina.core.records.routing import murmur2

KINDS = list(SubscriptionKind)


def dispatch_of(
    kind: SubscriptionKind = SubscriptionKind.EXCLUSIVE, *members: Member, unacked_max: int = 10_000, **rules: Any
) -> Dispatch:
    group = Members(kind)
    for member in members:
        group.attach(member)
    return Dispatch(Cursor(0), group, DispatchRules(**rules), unacked_max)


def pump(dispatch: Dispatch, batches: list[Batch], now: float = 0.0) -> list[PlannedDelivery]:
    """Read and share out until nothing more can be sent."""
    sent: list[PlannedDelivery] = []
    end = batches[-1].end if batches else 0
    while (wanted := dispatch.want(end)) is not None:
        more = dispatch.take(wanted, [batch for batch in batches if batch.end > wanted[0]], now)
        sent += more
        assert more or dispatch.want(end) != wanted, "no progress"
    return sent


def test_records_go_out_in_order_while_there_is_credit_p12() -> None:
    member = Member("a", credit=5)
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member)
    batches = [Batch(0, 3), Batch(3, 6), Batch(6, 9)]
    [sent] = pump(dispatch, batches)
    assert (sent.ranges, sent.batches, sent.attempt) == ([(0, 6)], [0, 1], 1), "whole batches, one overdraws"
    assert member.credit == -1
    member.credit += 2
    assert [sending.ranges for sending in pump(dispatch, batches)] == [[(6, 9)]]


def test_a_blocked_connection_gets_nothing_p3() -> None:
    slow, quick = Member("a", credit=100, is_blocked=True), Member("b", credit=100)
    dispatch = dispatch_of(SubscriptionKind.SHARED, slow, quick)
    assert {sending.member.name for sending in pump(dispatch, [Batch(n, n + 1) for n in range(10)])} == {"b"}


def test_shared_consumers_take_turns_p12() -> None:
    members = [Member(name, credit=100) for name in "abc"]
    dispatch = dispatch_of(SubscriptionKind.SHARED, *members)
    sent = pump(dispatch, [Batch(n, n + 1) for n in range(9)])
    assert sorted(sum(end - start for start, end in sending.ranges) for sending in sent) == [3, 3, 3]


def test_failover_goes_to_the_next_in_the_order_of_offsets_p12() -> None:
    first, second = Member("a", credit=4), Member("b", credit=100)
    dispatch = dispatch_of(SubscriptionKind.FAILOVER, first, second)
    batches = [Batch(n, n + 1) for n in range(8)]
    assert [(s.member, s.ranges) for s in pump(dispatch, batches)] == [(first, [(0, 4)])]
    dispatch.ack(first, [(1, 2)])
    dispatch.members.detach(first)
    dispatch.detach(first)
    sent = [(low, high) for sending in pump(dispatch, batches) for low, high in sending.ranges]
    assert sent == [(0, 1), (2, 4), (4, 8)]


def test_a_nack_comes_back_when_it_is_due_and_counts_p12() -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member)
    batches = [Batch(0, 3)]
    pump(dispatch, batches)
    assert dispatch.nack(member, [(1, 2)], due=5.0) == 1
    dispatch.tick(4.9)
    assert pump(dispatch, batches) == []
    assert dispatch.next_tick() == 5.0
    dispatch.tick(5.0)
    assert [(s.ranges, s.attempt) for s in pump(dispatch, batches, 5.0)] == [([(1, 2)], 2)]


def test_what_is_not_acked_in_time_comes_back_and_a_late_ack_does_not_count_p7() -> None:
    first, second = Member("a", credit=1), Member("b", credit=0)
    dispatch = dispatch_of(SubscriptionKind.SHARED, first, second, ack_timeout_seconds=10, redelivery_delay_seconds=0)
    batches = [Batch(0, 1)]
    pump(dispatch, batches, 0.0)
    assert dispatch.tick(9.0) == 0
    assert dispatch.tick(10.0) == 1
    second.credit = 1
    assert [s.member.name for s in pump(dispatch, batches, 10.0)] == ["b"]
    assert dispatch.ack(first, [(0, 1)]) == 0, "not its own any more"
    assert dispatch.ack(second, [(0, 1)]) == 1
    assert dispatch.cursor.offset == 1


def test_a_second_delivery_has_its_own_time_p7() -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member, ack_timeout_seconds=10, redelivery_delay_seconds=0)
    batches = [Batch(0, 3)]
    pump(dispatch, batches, 0.0)
    dispatch.nack(member, [(1, 2)], due=5.0)
    dispatch.tick(5.0)
    pump(dispatch, batches, 5.0)
    assert dispatch.tick(10.0) == 2, "the first delivery is late, the second is not"
    assert dispatch.tick(15.0) == 1


def test_a_record_is_a_dead_letter_after_the_last_delivery_and_leaving_does_not_count_p12() -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member, deliveries_max=2)
    batches = [Batch(0, 2)]
    pump(dispatch, batches)
    dispatch.detach(member)
    pump(dispatch, batches)
    dispatch.nack(member, [(0, 1)], due=0.0)
    dispatch.tick(0.0)
    assert [s.attempt for s in pump(dispatch, batches)] == [2]
    dispatch.nack(member, [(0, 1)], due=0.0)
    assert list(dispatch.dying) == [(0, 1)]
    dispatch.tick(1000.0)
    dispatch.dead_lettered(0, 1)
    assert dispatch.cursor.offset == 1


def test_a_record_that_could_not_be_buried_is_delivered_once_more_p12() -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member, deliveries_max=1)
    batches = [Batch(0, 4)]
    pump(dispatch, batches)
    dispatch.nack(member, [(0, 3)], due=0.0)
    assert list(dispatch.dying) == [(0, 3)]
    dispatch.dead_letter_failed(1, 2, due=5.0)
    assert list(dispatch.dying) == [(0, 1), (2, 3)]
    dispatch.tick(4.9)
    assert dispatch.want(4) is None
    dispatch.tick(5.0)
    assert [(sending.ranges, sending.attempt) for sending in pump(dispatch, batches, 5.0)] == [([(1, 2)], 2)]
    dispatch.nack(member, [(1, 2)], due=6.0)
    assert list(dispatch.dying) == [(0, 3)]


def test_buried_records_hold_no_key_and_no_place_p12() -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.KEY_SHARED, member, deliveries_max=1)
    pump(dispatch, [Batch(10, 14, [1, 2, 1, 2])])
    dispatch.nack(member, [(10, 13)], due=0.0)
    dispatch.dead_lettered(11, 13)
    assert list(dispatch.dying) == [(10, 11)]
    assert sorted(dispatch.slots) == [10, 13]
    assert dispatch.cursor.unacked(10, 14) == [(10, 11), (13, 14)]
    dispatch.dead_lettered(10, 11)
    assert dispatch.ack(member, [(13, 14)]) == 1
    assert (dispatch.slots, dispatch.slot_holders) == ({}, {})


def test_a_shorter_time_to_ack_counts_also_for_what_was_sent_and_a_longer_one_only_after_p7() -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member, ack_timeout_seconds=30)
    batches = [Batch(0, 1), Batch(1, 2), Batch(2, 3)]
    for number, now in ((1, 0.0), (2, 20.0)):
        pump(dispatch, batches[:number], now)
    dispatch.change_rules(DispatchRules(ack_timeout_seconds=100), now=21.0)
    pump(dispatch, batches, 21.0)
    assert [dispatch.tick(29.9), dispatch.tick(30.0), dispatch.tick(30.1)] == [0, 1, 0]
    short = DispatchRules(ack_timeout_seconds=5, redelivery_delay_seconds=7.0)
    dispatch.change_rules(short, now=40.0)
    assert dispatch.rules == short
    assert dispatch.tick(44.9) == 0
    assert (dispatch.in_flight, dispatch.next_tick()) == (2, 45.0)
    assert dispatch.tick(45.0) == 2
    assert dispatch.next_tick() == 52.0


def test_time_has_nothing_to_do_while_nothing_is_sent_or_delayed() -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member, ack_timeout_seconds=30)
    assert dispatch.next_tick() is None
    pump(dispatch, [Batch(0, 2)], 1.0)
    assert dispatch.next_tick() == 31.0
    dispatch.nack(member, [(0, 1)], due=40.0)
    assert dispatch.next_tick() == 31.0
    dispatch.ack(member, [(1, 2)])
    assert dispatch.next_tick() == 40.0


def test_what_retention_took_is_neither_ready_nor_dying() -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member, deliveries_max=1)
    pump(dispatch, [Batch(0, 8)])
    dispatch.nack(member, [(0, 1), (1, 2), (6, 7)], due=0.0)
    dispatch.detach(member)
    assert list(dispatch.ready) == [(2, 6), (7, 8)]
    assert dispatch.skip_to(4) == 4
    assert (list(dispatch.ready), list(dispatch.dying)) == ([(4, 6), (7, 8)], [(6, 7)])
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member)
    pump(dispatch, [Batch(0, 8)])
    dispatch.detach(member)
    assert dispatch.skip_to(20) == 20, "also what was never read"
    assert (list(dispatch.ready), dispatch.want(20), dispatch.want(21)) == ([], None, (20, 2**63 - 1))


def test_nothing_new_is_read_while_too_much_is_unacked() -> None:
    member = Member("a", credit=1_000_000)
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member, unacked_max=10)
    batches = [Batch(n, n + 1) for n in range(100)]
    dispatch.take((0, 2**62), batches[:10], 0.0)
    assert dispatch.want(100) is None
    dispatch.ack(member, [(4, 5)])
    assert dispatch.want(100) is not None


def test_a_slot_is_a_hash_of_the_key_and_those_without_key_share_one() -> None:
    assert slot_of(None) == 0
    assert [slot_of(key) for key in (b"", b"a", b"order-17")] == [
        murmur2(key) % SLOTS for key in (b"", b"a", b"order-17")
    ]


def test_nothing_new_is_read_while_the_cursor_is_in_too_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sulina.core.delivery.dispatch.PIECES_MAX", 4)
    member = Member("a", credit=1_000)
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, member)
    pump(dispatch, [Batch(0, 10)])
    dispatch.ack(member, [(1, 2), (3, 4)])
    dispatch.nack(member, [(5, 6)], due=9.0)
    assert dispatch.want(100) is not None
    dispatch.nack(member, [(7, 8)], due=9.0)
    assert dispatch.want(100) is None


def test_what_was_read_too_early_is_left_out() -> None:
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, Member("a", credit=100))
    pump(dispatch, [Batch(0, 2)])
    [sent] = dispatch.take((2, 2**63), [Batch(0, 2), Batch(2, 4)], 0.0)
    assert (sent.ranges, sent.batches) == ([(2, 4)], [1])


def test_what_retention_took_while_the_log_was_read_is_not_sent_and_the_rest_is_sent_once() -> None:
    dispatch = dispatch_of(SubscriptionKind.EXCLUSIVE, Member("a", credit=100))
    wanted = dispatch.want(4)
    assert wanted is not None
    dispatch.skip_to(2)
    sent = dispatch.take(wanted, [Batch(0, 4)], 0.0) + pump(dispatch, [Batch(0, 4)])
    assert [sending.ranges for sending in sent] == [[(2, 4)]]


def test_most_keys_stay_when_a_consumer_comes() -> None:
    members = Members(SubscriptionKind.KEY_SHARED, [Member("a"), Member("b"), Member("c")])
    before = {slot: members.owner_of(slot) for slot in range(0, SLOTS, 8)}
    members.attach(Member("d"))
    moved = sum(members.owner_of(slot) is not owner for slot, owner in before.items())
    assert 0.15 < moved / len(before) < 0.35, "a quarter goes to the new one"


def test_a_key_waits_for_its_former_consumer_p12() -> None:
    first = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.KEY_SHARED, first)
    slots = [slot_of(b"%d" % number) for number in range(20)]
    batches = [Batch(0, 20, slots), Batch(20, 40, slots)]
    pump(dispatch, batches[:1])
    second = Member("b", credit=100)
    dispatch.members.attach(second)
    moved = [n for n in range(20) if dispatch.members.owner_of(slots[n]) is second]
    assert moved
    sent = pump(dispatch, batches)
    assert {s.member for s in sent} == {first}, "what has moved waits"
    dispatch.ack(first, [(moved[0], moved[0] + 1)])
    later = pump(dispatch, batches)
    assert [(s.member, s.ranges) for s in later] == [(second, [(moved[0] + 20, moved[0] + 21)])]


def test_records_of_a_key_are_released_one_by_one_p12() -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.KEY_SHARED, member)
    [sent] = pump(dispatch, [Batch(0, 2, [7, 7]), Batch(2, 5, [7, 8, 7])])
    assert (sent.ranges, sent.batches) == ([(0, 5)], [0, 1])
    dispatch.ack(member, [(2, 3)])
    assert sorted(dispatch.slots) == [0, 1, 3, 4]
    assert dispatch.slot_holders == {7: (member, 3), 8: (member, 1)}
    dispatch.detach(member)
    assert (dispatch.slot_holders, dispatch.held_by(member)) == ({}, [])
    assert list(dispatch.ready) == [(0, 2), (3, 5)]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_while_nobody_can_take_it(kind: SubscriptionKind) -> None:
    member = Member("a", credit=4)
    dispatch = dispatch_of(kind, member)
    pump(dispatch, [Batch(0, 4, [1] * 4 if kind == SubscriptionKind.KEY_SHARED else [])])
    dispatch.detach(member)
    assert dispatch.want(8) is None, "neither what came back nor what is new"
    member.credit = 1
    assert dispatch.want(8) == (0, 4)


def waiting_for_a_key() -> tuple[Dispatch, Member, int]:
    """The first of two consumers holds 0 to 2, and the second waits for 0 to get 3. And a slot of the first."""
    first, second = Member("a", credit=100), Member("b", credit=100)
    both = Members(SubscriptionKind.KEY_SHARED, [first, second])
    moves = next(slot for slot in range(SLOTS) if both.owner_of(slot) is second)
    stays = next(slot for slot in range(SLOTS) if both.owner_of(slot) is first)
    dispatch = dispatch_of(SubscriptionKind.KEY_SHARED, first)
    pump(dispatch, [Batch(0, 3, [moves, stays, stays])])
    dispatch.members.attach(second)
    assert dispatch.take((3, 2**63), [Batch(3, 4, [moves])], 0.0) == []
    return dispatch, first, stays


def test_a_key_that_becomes_free_is_noticed_although_more_was_read_meanwhile_p12() -> None:
    dispatch, first, stays = waiting_for_a_key()
    dispatch.ack(first, [(1, 2)])
    assert dispatch.want(4) is None
    assert len(dispatch.take((4, 2**63), [Batch(4, 5, [stays])], 0.0)) == 1
    dispatch.ack(first, [(0, 1)])
    assert dispatch.want(5) == (3, 5)


@pytest.mark.parametrize("acked", [[(0, 1)], [(0, 1), (2, 3)]], ids=str)
def test_a_key_that_becomes_free_is_noticed_although_others_came_back_meanwhile_p12(
    acked: list[tuple[int, int]],
) -> None:
    dispatch, first, _ = waiting_for_a_key()
    dispatch.nack(first, [(1, 2)], due=5.0)
    assert dispatch.want(4) is None
    dispatch.tick(5.0)
    dispatch.ack(first, acked)
    assert dispatch.want(4) == (1, 4)


class Deliveries(RuleBasedStateMachine):
    """A world of consumers that come, go, ack, fail and dawdle."""

    @initialize(
        kind=st.sampled_from(KINDS),
        limit=st.sampled_from([None, 1, 2]),
        unacked_max=st.sampled_from([5, 1000]),
        batches=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=4),
        credits_=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    )
    def begin(
        self,
        kind: SubscriptionKind,
        limit: int | None,
        unacked_max: int,
        batches: list[list[int]],
        credits_: list[int],
    ) -> None:
        self.now = 0.0
        self.unacked_max = unacked_max
        self.rules_of = DispatchRules(ack_timeout_seconds=10, redelivery_delay_seconds=2, deliveries_max=limit)
        self.members = Members(kind)
        self.dispatch = Dispatch(Cursor(0), self.members, self.rules_of, unacked_max)
        self.batches: list[Batch] = []
        self.slots: list[int] = []
        self.holder: dict[int, Member] = {}  # offset -> who holds it
        self.acked: set[int] = set()
        self.names = 0
        for slots in batches:
            self.append(slots)
        for credit in credits_:
            self.attach(credit)

    @property
    def end(self) -> int:
        return len(self.slots)

    @rule(slots=st.lists(st.integers(0, 5), min_size=1, max_size=6))
    def append(self, slots: list[int]) -> None:
        keyed = slots if self.members.kind == SubscriptionKind.KEY_SHARED else []
        self.batches.append(Batch(self.end, self.end + len(slots), keyed))
        self.slots += slots

    @rule(credit=st.integers(0, 12))
    def attach(self, credit: int) -> None:
        if self.members.is_free and len(self.members.present) < 4:
            self.names += 1
            self.members.attach(Member(f"m{self.names}", credit=credit))

    @precondition(lambda self: self.members.present)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members.present))
        self.members.detach(member)
        self.dispatch.detach(member)
        self.holder = {offset: who for offset, who in self.holder.items() if who is not member}

    @precondition(lambda self: self.members.present)
    @rule(data=st.data(), records=st.integers(1, 20), is_blocked=st.booleans())
    def credit(self, data: st.DataObject, records: int, is_blocked: bool) -> None:
        member = data.draw(st.sampled_from(self.members.present))
        member.credit += records
        member.is_blocked = is_blocked

    @precondition(lambda self: self.dispatch.want(self.end) is not None)
    @rule(late_credit=st.booleans())
    def deliver(self, late_credit: bool) -> None:
        while (wanted := self.dispatch.want(self.end)) is not None:
            self._deliver(wanted, late_credit)

    def _deliver(self, wanted: tuple[int, int], late_credit: bool) -> None:
        for member in self.members.present:  # who gets credit while the log is being read
            member.credit += 10 if late_credit else 0
        able = {member for member in self.members.present if member.is_able}
        found = [batch for batch in self.batches if batch.end > wanted[0]][:3]
        for sending in self.dispatch.take(wanted, found, self.now):
            assert sending.member in able, "sent to somebody without credit"
            covered = {o for number in sending.batches for o in range(found[number].start, found[number].end)}
            for offset in (o for part in sending.ranges for o in range(*part)):
                assert offset in covered
                self._sent(offset, sending)

    def _sent(self, offset: int, sending: PlannedDelivery) -> None:
        assert offset not in self.acked, "sent after it was acked"
        assert offset not in self.holder, "sent to two at a time"
        if self.members.kind in (SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED):
            is_late = sending.member.late_until is not None
            assert not is_late or all(member.late_until is not None for member in self.members.present), (
                "sent to a late one"
            )
        if self.members.kind == SubscriptionKind.KEY_SHARED and len(self.members.present) > 1:
            holding = sum(who is sending.member for who in self.holder.values())
            assert holding < self.unacked_max // 2, "one of several holds more than half"
        if sending.attempt == 1 and self.members.kind in (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER):
            self._check_order(offset, range(offset))
        if self.members.kind == SubscriptionKind.KEY_SHARED:
            if sending.attempt == 1:
                self._check_order(offset, [o for o in range(offset) if self.slots[o] == self.slots[offset]])
            others = {who for o, who in self.holder.items() if self.slots[o] == self.slots[offset]}
            assert others <= {sending.member}, "a key with two consumers"
        self.holder[offset] = sending.member

    def _check_order(self, offset: int, before: Iterable[int]) -> None:
        failed = self.dispatch.cursor.attempts
        late = [o for o in before if o not in self.acked and o not in self.holder and not failed.get(o, 0)]
        assert not late, f"{offset} overtakes {late}"

    @precondition(lambda self: self.holder)
    @rule(data=st.data(), how=st.sampled_from(["ack", "nack"]), length=st.integers(1, 8))
    def settle(self, data: st.DataObject, how: str, length: int) -> None:
        first = data.draw(st.sampled_from(sorted(self.holder)))
        member = self.holder[first]
        mine = [o for o in range(first, first + length) if self.holder.get(o) is member]
        span = [(first, first + length)]
        if how == "ack":
            assert self.dispatch.ack(member, span) == len(mine)
            self.acked |= set(mine)
        else:
            assert self.dispatch.nack(member, span, self.now + 1) == len(mine)
        for offset in mine:
            del self.holder[offset]

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.dispatch.tick(self.now)
        lost = {who for offset, who in self.holder.items() if offset not in self._held(who)}
        assert all(member.late_until is not None and member.late_until > self.now for member in lost), (
            "not acked, not late"
        )
        held = {o for member in self.members.present for o in self._held(member)}
        assert held <= set(self.holder)
        self.holder = {offset: who for offset, who in self.holder.items() if offset in held}

    def _held(self, member: Member) -> list[int]:
        return [o for part in self.dispatch.held_by(member) for o in range(*part)]

    @precondition(lambda self: self.dispatch.dying)
    @rule(works=st.booleans())
    def bury(self, works: bool) -> None:
        start, end = next(iter(self.dispatch.dying))
        if works:
            self.dispatch.dead_lettered(start, end)
            self.acked |= set(range(start, end))
        else:
            self.dispatch.dead_letter_failed(start, end, self.now + 1)

    @rule()
    def restart(self) -> None:
        """Only what was stored survives; consumers come back with new credit."""
        cursor = Cursor.load("/key", self.dispatch.cursor.stored())
        returning, self.members = self.members.present, Members(self.members.kind)
        self.dispatch = Dispatch(cursor, self.members, self.rules_of, self.unacked_max)
        self.holder = {}
        for _ in returning:
            self.attach(20)

    @invariant()
    def every_record_is_in_one_place(self) -> None:
        if not hasattr(self, "dispatch"):
            return
        dispatch = self.dispatch
        assert {o for o in range(self.end) if not dispatch.cursor.unacked(o, o + 1)} == self.acked
        places = [o for part in dispatch.ready for o in range(*part)]
        places += [o for part in dispatch.dying for o in range(*part)]
        places += list(self.holder)
        places += [o for part in dispatch.delayed for o in range(*part)]
        assert sorted(places) == [o for o in range(dispatch.read_offset) if o not in self.acked]
        assert dispatch.in_flight == len(self.holder)

    @invariant()
    def nobody_waits_who_could_be_served(self) -> None:
        if not hasattr(self, "dispatch") or self.dispatch.want(self.end) is not None:
            return
        able = [member for member in self.members.timely if self.dispatch.can_take(member)]
        ready = [o for part in self.dispatch.ready for o in range(*part)]
        if self.members.kind == SubscriptionKind.SHARED:
            assert not (able and ready)
        elif self.members.kind != SubscriptionKind.KEY_SHARED:
            assert not (self.members.present[:1] == able[:1] != [] and ready)
        for offset in ready if self.members.kind == SubscriptionKind.KEY_SHARED else ():
            slot = self.slots[offset]
            owner = self.members.owner_of(slot)
            assert owner not in able or {who for o, who in self.holder.items() if self.slots[o] == slot} - {owner}

    def teardown(self) -> None:
        """Whatever happened, a consumer that comes and acks gets everything in the end."""
        if not hasattr(self, "dispatch"):
            return
        for member in list(self.members.present):
            self.members.detach(member)
            self.dispatch.detach(member)
        last = Member("last", credit=10**9)
        self.members.attach(last)
        for _ in range(5 * self.end + 10):
            self.now += 5
            self.dispatch.tick(self.now)
            for start, end in list(self.dispatch.dying):
                self.dispatch.dead_lettered(start, end)
            wanted = self.dispatch.want(self.end)
            if wanted is not None:
                found = [batch for batch in self.batches if batch.end > wanted[0]]
                for sending in self.dispatch.take(wanted, found, self.now):
                    self.dispatch.ack(last, sending.ranges)
        assert self.dispatch.cursor.offset == self.end, "records that nobody ever got"


Deliveries.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestDeliveries = Deliveries.TestCase


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_retention_took_holds_nobody_up(kind: SubscriptionKind) -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(kind, member)
    keyed = [1, 1, 1, 1] if kind == SubscriptionKind.KEY_SHARED else []
    pump(dispatch, [Batch(0, 4, keyed)])
    dispatch.nack(member, [(1, 2)], due=1.0)
    assert dispatch.skip_to(3) == 3
    dispatch.tick(1.0)
    assert dispatch.want(4) is None
    assert dispatch.ack(member, [(0, 4)]) == 1
    assert dispatch.cursor.offset == 4


def test_credit_that_comes_while_the_log_is_read_lets_nothing_overtake_p12() -> None:
    poor, rich = Member("a", credit=0), Member("b", credit=100)
    dispatch = dispatch_of(SubscriptionKind.KEY_SHARED, poor, rich)
    slot = next(slot for slot in range(SLOTS) if dispatch.members.owner_of(slot) is poor)
    batches = [Batch(0, 1, [slot]), Batch(1, 2, [slot])]
    assert pump(dispatch, batches[:1]) == [], "it waits for its consumer"
    wanted = dispatch.want(2)
    assert wanted is not None
    poor.credit = 100
    assert dispatch.take(wanted, batches[1:], 0.0) == [], "the one that waits goes first"
    assert [sending.ranges for sending in pump(dispatch, batches)] == [[(0, 2)]]


@pytest.mark.parametrize("kind", [SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED])
@pytest.mark.parametrize("takes", [True, False], ids=["takes and never acks", "takes nothing"])
def test_a_consumer_that_never_acks_does_not_starve_the_others_p3(kind: SubscriptionKind, takes: bool) -> None:
    bad, good = Member("bad", credit=10**9 if takes else 0), Member("good", credit=10**9)
    dispatch = dispatch_of(kind, bad, good, unacked_max=100, ack_timeout_seconds=10, redelivery_delay_seconds=0)
    keyed = kind == SubscriptionKind.KEY_SHARED
    batches = [
        Batch(n, n + 10, [slot_of(b"%d" % (k % 40)) for k in range(n, n + 10)] if keyed else [])
        for n in range(0, 2000, 10)
    ]
    now, last = 0.0, 0.0
    while dispatch.cursor.offset < 2000:
        dispatch.tick(now)
        for sending in pump(dispatch, batches, now):
            if sending.member is good:
                dispatch.ack(good, sending.ranges)
                last = now
        held = sum(end - start for start, end in dispatch.held_by(bad))
        assert held <= 50 + 10, "at most half, and the batch that was begun"
        if dispatch.want(2000) is None and dispatch.cursor.offset < 2000:
            due = dispatch.next_tick()
            assert due is not None, "stuck for ever"
            assert due > now
            assert due - last <= 10 + 10, "nothing came to the other for longer than two times to ack"
            now = due


def test_a_late_consumer_is_tried_again_after_a_time_that_doubles_until_it_acks_p8() -> None:
    bad, good = Member("bad", credit=100), Member("good", credit=100)
    members = Members(SubscriptionKind.KEY_SHARED, [bad, good])
    slot = next(slot for slot in range(SLOTS) if members.owner_of(slot) is bad)
    for count, now in enumerate((0.0, 100.0, 1000.0)):
        members.set_late(bad, now, 10)
        assert members.owner_of(slot) is good
        assert members.next_try == now + 10 * 2**count
        members.set_late(bad, now + 1, 10)
        assert members.next_try == now + 10 * 2**count, "late once, until it is tried again"
        members.pass_time(now + 10 * 2**count - 0.1)
        assert members.owner_of(slot) is good
        members.pass_time(now + 10 * 2**count)
        assert members.owner_of(slot) is bad
    members.set_late(bad, 2000.0, 10)
    members.has_acked(bad)
    assert (members.owner_of(slot), members.next_try) == (bad, None)
    members.set_late(bad, 3000.0, 10)
    assert members.next_try == 3010.0
    members.set_late(good, 3000.0, 10)
    assert members.owner_of(slot) is bad, "where all are late, all are asked"


def test_the_keys_of_a_late_consumer_wait_for_what_it_still_holds_p12() -> None:
    bad, good = Member("bad", credit=100), Member("good", credit=100)
    dispatch = dispatch_of(SubscriptionKind.KEY_SHARED, bad, good, ack_timeout_seconds=10, redelivery_delay_seconds=0)
    one, two = [slot for slot in range(SLOTS) if dispatch.members.owner_of(slot) is bad][:2]
    batches = [Batch(0, 2, [one, two]), Batch(2, 4, [one, two]), Batch(4, 6, [one, two])]
    pump(dispatch, batches[:1], 0.0)
    pump(dispatch, batches[:2], 5.0)
    assert dispatch.tick(10.0) == 2
    assert pump(dispatch, batches, 10.0) == [], "it holds the second of each"
    assert dispatch.tick(15.0) == 2
    assert [(s.member, s.ranges) for s in pump(dispatch, batches, 15.0)] == [(good, [(0, 4)]), (good, [(4, 6)])]


def test_what_waits_for_another_consumer_holds_up_its_own_key_only_p12() -> None:
    poor, rich = Member("a", credit=0), Member("b", credit=100)
    dispatch = dispatch_of(SubscriptionKind.KEY_SHARED, poor, rich)
    of_poor = next(slot for slot in range(SLOTS) if dispatch.members.owner_of(slot) is poor)
    of_rich = next(slot for slot in range(SLOTS) if dispatch.members.owner_of(slot) is rich)
    batches = [Batch(0, 1, [of_rich]), Batch(1, 2, [of_poor]), Batch(2, 3, [of_rich])]
    pump(dispatch, batches)
    dispatch.ack(rich, [(0, 1)])
    dispatch.nack(rich, [(2, 3)], due=1.0)
    dispatch.tick(1.0)
    assert list(dispatch.ready) == [(1, 3)]
    assert dispatch.want(3) == (2, 3)
    [sent] = dispatch.take((2, 3), batches[2:], 1.0)
    assert (sent.member, sent.ranges, sent.attempt) == (rich, [(2, 3)], 2)


def held_alone(dispatch: Dispatch, member: Member) -> int:
    """How many of 20 records that were read at once a consumer is sent before it must ack."""
    sent = pump(dispatch, [Batch(n, n + 1) for n in range(20)])
    return sum(end - start for sending in sent if sending.member is member for start, end in sending.ranges)


@pytest.mark.parametrize(
    ("kind", "others", "unacked_max", "held"),
    [
        (SubscriptionKind.SHARED, 1, 10, 5),
        (SubscriptionKind.SHARED, 1, 7, 3),
        (SubscriptionKind.SHARED, 1, 1, 1),
        (SubscriptionKind.SHARED, 0, 10, 20),
        (SubscriptionKind.FAILOVER, 1, 10, 20),
        (SubscriptionKind.EXCLUSIVE, 0, 10, 20),
    ],
)
def test_half_of_what_may_be_unacked_is_for_one_of_several_who_share_p3(
    kind: SubscriptionKind, others: int, unacked_max: int, held: int
) -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(kind, member, *(Member(f"{n}") for n in range(others)), unacked_max=unacked_max)
    assert held_alone(dispatch, member) == held


def test_what_one_of_several_has_acked_makes_room_for_as_much_p3() -> None:
    member = Member("a", credit=100)
    dispatch = dispatch_of(SubscriptionKind.SHARED, member, Member("b"), unacked_max=8)
    batches = [Batch(n, n + 1) for n in range(20)]
    assert [sending.ranges for sending in pump(dispatch, batches)] == [[(0, 4)]]
    assert not dispatch.can_take(member)
    dispatch.ack(member, [(2, 4)])
    assert [sending.ranges for sending in pump(dispatch, batches)] == [[(4, 6)]]
    dispatch.nack(member, [(5, 6)], due=100.0)
    assert [sending.ranges for sending in pump(dispatch, batches)] == [[(6, 7)]]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (SubscriptionKind.EXCLUSIVE, [(2, [(0, 1)]), (1, [(1, 2)]), (2, [(2, 3)])]),
        (SubscriptionKind.SHARED, [(2, [(0, 1), (2, 3)]), (1, [(1, 2)])]),
    ],
)
def test_what_failed_before_keeps_its_place_unless_consumers_share_p12(
    kind: SubscriptionKind, sent: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    first = Member("a", credit=3)
    dispatch = dispatch_of(kind, first, redelivery_delay_seconds=0)
    batches = [Batch(0, 3)]
    pump(dispatch, batches)
    dispatch.nack(first, [(0, 1), (2, 3)], due=1.0)
    dispatch.members.detach(first)
    dispatch.detach(first)
    dispatch.tick(1.0)
    dispatch.members.attach(Member("b", credit=3))
    assert [(sending.attempt, sending.ranges) for sending in pump(dispatch, batches, 1.0)] == sent


def test_who_takes_nothing_while_a_key_waits_is_late_after_the_time_to_ack_p3() -> None:
    poor, rich = Member("a", credit=0), Member("b", credit=100)
    dispatch = dispatch_of(SubscriptionKind.KEY_SHARED, poor, rich, ack_timeout_seconds=10)
    slot = next(slot for slot in range(SLOTS) if dispatch.members.owner_of(slot) is poor)
    batches = [Batch(0, 1, [slot])]
    dispatch.tick(900.0)
    assert dispatch.next_tick() is None, "nothing waits for it"
    assert pump(dispatch, batches, 1000.0) == []
    dispatch.tick(1000.0)
    assert dispatch.next_tick() == 1010.0
    dispatch.tick(1009.9)
    assert pump(dispatch, batches, 1009.9) == []
    dispatch.tick(1010.0)
    assert [(s.member, s.ranges) for s in pump(dispatch, batches, 1010.0)] == [(rich, [(0, 1)])]


def test_who_takes_something_again_has_its_whole_time_again_p3() -> None:
    poor, rich = Member("a", credit=0), Member("b", credit=100)
    dispatch = dispatch_of(SubscriptionKind.KEY_SHARED, poor, rich, ack_timeout_seconds=10)
    slot = next(slot for slot in range(SLOTS) if dispatch.members.owner_of(slot) is poor)
    dispatch.take((0, 2), [Batch(0, 2, [slot, slot])], 0.0)
    dispatch.tick(0.0)
    poor.credit = 1
    [sent] = dispatch.take((0, 1), [Batch(0, 2, [slot, slot])], 9.0)
    dispatch.ack(poor, sent.ranges)
    dispatch.tick(9.0)
    assert dispatch.members.owner_of(slot) is poor
    dispatch.tick(18.9)
    assert dispatch.members.owner_of(slot) is poor, "it is ten seconds from its last record on"
    dispatch.tick(19.0)
    assert dispatch.members.owner_of(slot) is rich

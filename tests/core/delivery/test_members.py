"""Which of its consumers a subscription delivers to, where one is chosen for the whole cluster."""

from sulina.core.delivery.members import Member, Members, SubscriptionKind


def test_a_held_subscription_delivers_to_its_holder_and_to_nobody_when_that_is_gone() -> None:
    members = Members(SubscriptionKind.FAILOVER, is_held=True)
    anna, ben = Member("anna", credit=1), Member("ben", credit=1)
    members.attach(anna)
    members.attach(ben)
    assert members.next_able() is None, "nobody was chosen yet"
    before = members.version
    members.activate(ben)
    assert members.version != before
    assert members.next_able() is ben
    members.detach(anna)
    assert members.next_able() is ben
    members.detach(ben)
    assert members.first is None

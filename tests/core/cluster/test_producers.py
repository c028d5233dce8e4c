"""Which entries of producers a broker deletes and writes."""

from sulina.core.cluster.producers import PRODUCERS_OF_A_TOPIC_MAX, ProducerKey, StoredProducer, reconcile


def changes(stored: list[ProducerKey], attached: set[str]) -> tuple[list[ProducerKey], list[ProducerKey]]:
    """What broker a deletes and writes while a and b are there; the first entries are the oldest."""
    entries = {key: StoredProducer(since_ms=at) for at, key in enumerate(stored)}
    return reconcile(entries, attached, broker_id="a", present={"a", "b"})


def test_f1_entries_of_a_dead_broker_stay_until_their_producer_is_elsewhere() -> None:
    assert changes([("p", "dead")], set()) == ([], [])
    assert changes([("p", "dead"), ("q", "dead")], {"p"}) == ([("p", "dead")], [("p", "a")])


def test_a_broker_deletes_its_own_entries_and_never_those_of_one_that_is_there() -> None:
    assert changes([("p", "a"), ("q", "a")], {"q"}) == ([("p", "a")], [])
    assert changes([("p", "b")], {"p"}) == ([], [("p", "a")])


def test_what_is_written_is_new_and_bounded() -> None:
    full: list[ProducerKey] = [(f"p{number}", "b") for number in range(PRODUCERS_OF_A_TOPIC_MAX - 1)]
    assert changes(full, {"x", "y"}) == ([], [("x", "a")])
    assert changes([*full, ("q", "b"), ("r", "b")], {"x"}) == ([], [])


def test_an_entry_that_goes_makes_room_for_one_that_comes() -> None:
    full: list[ProducerKey] = [("left", "a"), *((f"p{number}", "b") for number in range(PRODUCERS_OF_A_TOPIC_MAX - 1))]
    assert changes(full, {"x"}) == ([("left", "a")], [("x", "a")])
    assert changes([*full, ("old", "dead")], {"x"}) == ([("left", "a"), ("old", "dead")], [("x", "a")])


def test_entries_of_dead_brokers_make_room_the_oldest_first() -> None:
    full: list[ProducerKey] = [("old", "dead"), ("new", "dead")]
    full += [(f"p{number}", "b") for number in range(PRODUCERS_OF_A_TOPIC_MAX - 2)]
    assert changes(full, {"x"}) == ([("old", "dead")], [("x", "a")])
    assert changes(full, {"x", "y", "z"}) == ([("old", "dead"), ("new", "dead")], [("x", "a"), ("y", "a")])

"""Which entries of producers a broker deletes and writes."""

from sulina.core.producers import KEPT_MS, PRODUCERS_OF_A_TOPIC_MAX, StoredProducer, missing, outdated

NOW = 10 * KEPT_MS


def gone(stored: dict[tuple[str, str], int], attached: set[str]) -> list[tuple[str, str]]:
    entries = {key: StoredProducer(since_ms=NOW - age_ms) for key, age_ms in stored.items()}
    return outdated(entries, attached, broker_id="a", present={"a", "b"}, now_ms=NOW)


def test_f1_entries_of_a_dead_broker_stay_until_their_producer_is_elsewhere() -> None:
    assert gone({("p", "dead"): 5}, set()) == []
    assert gone({("p", "dead"): 5, ("q", "dead"): 5}, {"p"}) == [("p", "dead")]
    assert gone({("p", "dead"): KEPT_MS + 1}, set()) == [("p", "dead")]


def test_a_broker_deletes_its_own_entries_and_never_those_of_one_that_is_there() -> None:
    assert gone({("p", "a"): 5, ("q", "a"): 5}, {"q"}) == [("p", "a")]
    assert gone({("p", "b"): KEPT_MS + 1}, {"p"}) == []


def test_what_is_written_is_new_and_bounded() -> None:
    assert missing({("p", "a")}, {"p", "q"}, broker_id="a", others=1) == [("q", "a")]
    assert missing({("p", "b")}, {"p"}, broker_id="a", others=1) == [("p", "a")]
    assert missing(set(), {"p", "q"}, broker_id="a", others=PRODUCERS_OF_A_TOPIC_MAX - 1) == [("p", "a")]
    assert missing(set(), {"p"}, broker_id="a", others=PRODUCERS_OF_A_TOPIC_MAX + 5) == []

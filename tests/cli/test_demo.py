"""The demo: its check can fail, and the real thing passes it."""

import os
from pathlib import Path

import pytest

from sulina.cli.demo.tally import Order, SequenceCheck, Tally
from sulina.cli.demo.view import save_svg
from tests.cli.conftest import ended


def order(lane: int, number: int) -> Order:
    return Order(lane=lane, number=number, sent_ns=0, item="rope", amount=1.0)


def test_records_in_order_are_fine_and_repeats_are_counted() -> None:
    seen = SequenceCheck()
    assert seen.take(0, 0, order(1, 0))
    assert seen.take(0, 1, order(2, 0))
    assert seen.take(1, 0, order(3, 0))
    assert not seen.take(0, 1, order(2, 0))
    assert (seen.records, seen.repeated, seen.faults) == (3, 1, [])


@pytest.mark.parametrize(
    ("offset", "number", "fault"),
    [
        (2, 1, "partition 0 went from offset 0 to 2"),
        (1, 2, "lane 1 went from record 0 to 2"),
        (1, 0, "lane 1 went from record 0 to 0"),
    ],
)
def test_a_gap_a_loss_and_a_second_copy_are_faults(offset: int, number: int, fault: str) -> None:
    seen = SequenceCheck()
    seen.take(0, 0, order(1, 0))
    seen.take(0, offset, order(1, number))
    assert seen.faults == [fault]


def test_an_acked_record_that_is_nowhere_is_a_fault() -> None:
    tally = Tally()
    tally.acked_ends[0], tally.acked_numbers[1] = 2, 2
    stored = SequenceCheck()
    for number in range(2):
        assert tally.faults(stored)
        stored.take(0, number, order(1, number))
        tally.delivered.take(0, number, order(1, number))
    assert tally.faults(stored) == []


def test_a_node_is_killed_and_loses_nothing() -> None:
    told = ended("demo", "--seconds", "3", "--no-tables", "--json").json
    assert told["is_proven"], told["faults"]
    assert told["kills"] == 1
    assert told["acked"] == told["delivered"] > 500


@pytest.mark.skipif(not os.environ.get("SULINA_SLOW"), reason="takes a minute or two: make examples")
def test_s3_the_demo_ends_with_tables_that_have_every_record_once() -> None:
    done = ended("demo", "--seconds", "3", "--rate", "300", "--json", seconds_max=220)
    assert done.code == 0, done
    told = done.json
    assert sum(row["orders"] for row in told["revenue"]) == told["acked"]


def test_the_demo_leaves_the_data_that_it_was_given_and_takes_no_other(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    done = ended(
        "demo",
        "--seconds",
        "2",
        "--rate",
        "200",
        "--no-tables",
        "--data",
        str(tmp_path / "data"),
        "--svg",
        str(picture),
    )
    assert done.code == 0, done
    assert "nothing lost" in done.out
    assert any((tmp_path / "data").iterdir())
    assert picture.read_text().startswith("<svg")
    again = ended("demo", "--data", str(tmp_path / "data"), "--json")
    assert (again.code, again.error["code"]) == (1, "invalid_settings")


def test_the_picture_asks_for_nothing_from_elsewhere(tmp_path: Path) -> None:
    save_svg(str(tmp_path / "x.svg"), "hello")
    text = (tmp_path / "x.svg").read_text()
    assert "hello" in text
    assert text.count("http") == 1, "the name space of SVG, and nothing else"

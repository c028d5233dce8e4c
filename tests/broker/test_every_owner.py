"""What several brokers have to agree on: dead letters that end, consumers that are one, cursors of all partitions."""

from pathlib import Path

import pytest

from sulina.core.topic import Policy, TopicSettings
from sulina.errors import InvalidSettings
from sulina.types import TopicName
from tests.support.brokers import brokers

ONE, TWO = TopicName.parse("/default/one"), TopicName.parse("/default/two")


async def test_p12_of_two_brokers_that_make_the_halves_of_a_circle_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        for name in (ONE, TWO):
            await a.put_topic(name, TopicSettings())
            await b.fetch_topic(name)
        change = a._catalogue.change_topic

        async def after_the_other(*arguments: object) -> None:
            """What was checked is not so any more when it is written."""
            monkeypatch.undo()
            await b.put_topic(TWO, TopicSettings(policy=Policy(dead_letter=str(ONE))))
            await change(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(a._catalogue, "change_topic", after_the_other)
        with pytest.raises(InvalidSettings, match="circle"):
            await a.put_topic(ONE, TopicSettings(policy=Policy(dead_letter=str(TWO))))

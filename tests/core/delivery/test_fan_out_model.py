"""Fan-out and attempts together in a world of broken links and bad subscribers, held to its model.

A machine looks for the smallest story that breaks a rule; seeded walks go further.
"""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sulina.core.delivery.pubsub import TopicOptions
from tests.support.fan_out_world import NODES, OPTIONS, World

WAYS_TO_GO = ["leaves", "is lost", "comes back"]
WAYS_TO_SETTLE = ["acks", "acks all", "acks any", "acks any", "fails"]
SECONDS = [0.4, 0.6, 1.0, 1.5, 3.0, 6.0, 21.0]
WALKS = 100
STEPS = 150
which = st.integers(0, 5)


class Stories(RuleBasedStateMachine):
    """Everything that can happen, in any order."""

    @initialize(
        is_reliable=st.booleans(),
        nodes=st.lists(st.sampled_from(NODES), min_size=1, max_size=5),
        eager=st.sets(st.sampled_from(NODES)),
    )
    def begin(self, is_reliable: bool, nodes: list[str], eager: set[str]) -> None:
        self.world = World(is_reliable, nodes, eager)

    @rule(node=st.sampled_from(NODES), from_start=st.booleans())
    def subscribe(self, node: str, from_start: bool) -> None:
        self.world.subscribe(node, from_start)

    @rule(which=which, how=st.sampled_from(WAYS_TO_GO))
    def go(self, which: int, how: str) -> None:
        self.world.go(which, how)

    @rule(which=which, how=st.sampled_from(WAYS_TO_SETTLE))
    def settle(self, which: int, how: str) -> None:
        self.world.settle(which, how)

    @rule(node=st.sampled_from(NODES), count=st.integers(0, 9), back=st.integers(0, 9))
    def carry(self, node: str, count: int, back: int) -> None:
        self.world.to_node(node, count)
        self.world.to_owner(node, back)

    @rule(node=st.sampled_from("bc"), restarts=st.booleans())
    def cut_or_heal(self, node: str, restarts: bool) -> None:
        self.world.cut_or_heal(node, restarts)

    @rule(node=st.sampled_from("bc"), is_blocked=st.booleans())
    def block(self, node: str, is_blocked: bool) -> None:
        self.world.block(node, is_blocked)

    @rule(options=st.sampled_from(OPTIONS), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5))
    def publish(self, options: TopicOptions, sizes: list[int]) -> None:
        self.world.publish(options, sizes)

    @rule(reads=st.integers(1, 9), batches=st.integers(1, 3), is_early=st.booleans())
    def feed(self, reads: int, batches: int, is_early: bool) -> None:
        self.world.feed(reads, batches, is_early)

    @rule(kept=st.integers(3, 20))
    def retain(self, kept: int) -> None:
        self.world.retain(kept)

    @rule(seconds=st.sampled_from(SECONDS))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def flow(self) -> None:
        self.world.flow()

    @invariant()
    def all_agrees(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


Stories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck))
TestStories = Stories.TestCase


def walk(seed: int, *, is_reliable: bool, steps: int) -> World:
    """A long story, told by chance."""
    rng = random.Random(seed)
    world = World(is_reliable, rng.choices(NODES, k=rng.randint(1, 5)), set(rng.sample(NODES, rng.randint(0, 3))))
    ways = {
        "publish": lambda: world.publish(
            rng.choice([*OPTIONS, *OPTIONS[:1] * 3]), [rng.randint(1, 20) for _ in range(rng.randint(1, 4))]
        ),
        "settle": lambda: world.settle(rng.randrange(60), rng.choice(WAYS_TO_SETTLE)),
        "feed": lambda: world.feed(rng.randint(1, 6), rng.randint(1, 3), rng.random() < 0.5),
        "to_node": lambda: world.to_node(rng.choice(NODES), rng.randint(1, 9)),
        "to_owner": lambda: world.to_owner(rng.choice(NODES), rng.randint(1, 9)),
        "subscribe": lambda: world.subscribe(rng.choice(NODES), rng.random() < 0.5),
        "go": lambda: world.go(rng.randrange(60), rng.choice(WAYS_TO_GO)),
        "cut_or_heal": lambda: world.cut_or_heal(rng.choice("bc"), rng.random() < 0.1),
        "block": lambda: world.block(rng.choice("bc"), rng.random() < 0.5),
        "retain": lambda: world.retain(rng.randint(3, 30)),
        "pass_time": lambda: world.pass_time(rng.choice(SECONDS[: rng.choice([4, 6, 7])])),
        "flow": world.flow,
    }
    weights = [5, 8, 4, 5, 5, 1, 0.6, 1.5, 1, 0.1, 2, 0.3]
    for way in rng.choices(list(ways), weights, k=steps):
        ways[way]()
        world.check()
    world.finish()
    return world


@pytest.mark.parametrize("is_reliable", [False, True])
def test_long_walks_break_no_rule_p3_p6_p7_p8_p9(is_reliable: bool) -> None:
    for seed in range(WALKS):
        try:
            walk(seed, is_reliable=is_reliable, steps=STEPS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise

"""Brokers that take a partition over from each other, again and again, through a store that loses requests.

`SULINA_TAKEOVERS=2000 pytest tests/storage/test_takeovers.py` is the long form. A failure names its seed.
"""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.takeover_world import World

SEEDS = int(os.environ.get("SULINA_TAKEOVERS", "40"))
FIRST = int(os.environ.get("SULINA_SEED", "0"))
STEPS = 120


@pytest.mark.timeout(60 + 3 * SEEDS)
def test_u6_u14_the_next_owner_goes_on_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """L2, L13: no acked record lost, no offset with two contents, no gap, versions go on, no stale owner acks."""
    total: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + SEEDS):
        home = tmp_path / str(seed)
        home.mkdir()
        world = World(seed, home)
        try:
            world.run(STEPS)
        except BaseException:
            print(f"seed {seed}: SULINA_SEED={seed} SULINA_TAKEOVERS=1")
            raise
        total.update(world.counts)
    assert total["acked"] > 10 * SEEDS, total

"""SIGKILL a node that serves HTTP and WebSocket under load, at random, again and again, and hold it to its promises.

`SULINA_NODE_KILLS=50 pytest tests/blackbox/test_kills.py` is the long form; `SULINA_SEED` gives the moments. The rules
are in tests/support/kill_history.py, and test_kill_history.py shows that each of them can fail.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kill_world import Run

KILLS = int(os.environ.get("SULINA_NODE_KILLS", "10"))
SEED = int(os.environ.get("SULINA_SEED", "7"))


@pytest.mark.timeout(300 + 30 * KILLS)
async def test_l13_a_node_killed_at_random_under_load_keeps_what_it_acked_and_resumes_at_its_cursors(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """L2, L5, L7 too: every acked publish is there once, at its offset, without a gap; no durable ack is forgotten."""
    print(f"SULINA_SEED={SEED} SULINA_NODE_KILLS={KILLS}")
    run = Run(tmp_path, SEED)
    async with run.running():
        for _ in range(KILLS):
            await run.kill()
        wrong = await run.finish()
    counts = run.tally.counts() | run.history.counts()
    for name, count in counts.items():
        print(f"{count:>10} {name}")
        record_property(name, count)
    if wrong:
        run.history.write(tmp_path / "history.txt")
    assert not wrong, "\n".join([f"seed {SEED}, {tmp_path}: {len(wrong)} violations", *wrong[:40]])
    assert run.tally.kills == KILLS
    nothing = [name for name, count in counts.items() if not count]
    assert KILLS < 10 or not nothing, f"the run had none of {nothing}: it shows less than it should"

"""examples/walkthrough.py, from its first cell to its last."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "walkthrough.py"
RUN_SECONDS_MAX = 230


@pytest.mark.skipif(not os.environ.get("SULINA_SLOW"), reason="takes a minute or two: make examples")
def test_s3_the_walk_through_goes_through() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "20,000 records, each acknowledged" in done.stdout
    assert "silver orders: 19510 rows in, 490 put aside" in done.stdout
    assert "version 2 of the bronze table has 21000 rows" in done.stdout

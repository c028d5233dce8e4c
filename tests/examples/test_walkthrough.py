"""examples/walkthrough.py, from its first cell to its last."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sulina

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


@pytest.mark.timeout(RUN_SECONDS_MAX)
def test_a_walk_through_that_nobody_reads_on_ends_without_a_trace_and_stops_its_node() -> None:
    command = [sys.executable, "-u", str(EXAMPLE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = process.stdout.readline().split()[-1]
            process.stdout.close()  # as `| head -1` does
            assert process.stderr.read() == ""
            assert process.wait(RUN_SECONDS_MAX) == 1
        finally:
            process.kill()
    with pytest.raises(sulina.errors.Disconnected, match="nobody listens there"):
        sulina.connect_sync(url)

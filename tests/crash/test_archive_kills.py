"""SIGKILL at every named step of archive and takeover: whoever opens the log next has all of it, and goes on.

`SULINA_KILLS=1 pytest tests/crash/test_archive_kills.py` is the long form: every occurrence of every step.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sulina.core.log.log_state import Appended
from sulina.failpoints import ARCHIVE_FAILPOINTS, Failpoint, no_failpoints
from sulina.storage.tiered_log import TieredLog
from sulina.types import Offset, Version
from tests.crash.archive_child import PADDING_BYTES, PARTITION, opened
from tests.support.fork_server import ForkServer
from tests.support.ledger import Ledger, batch, records_in

IS_LONG = bool(os.environ.get("SULINA_KILLS"))
TIMEOUT_SECONDS = 60.0


@dataclass(slots=True)
class Told:
    """What a process told before it died."""

    ledger: Ledger = field(default_factory=lambda: Ledger(padding_bytes=PADDING_BYTES))
    broker: str = ""
    epoch: int = 0
    start: int = 0
    is_retaining: bool = False
    killed: tuple[Failpoint, int] | None = None
    counts: dict[Failpoint, int] = field(default_factory=dict)

    def read(self, line: str) -> None:
        match json.loads(line):
            case ["sent", number]:
                self.ledger.sent.add(number)
            case ["acked", number, start, end, version]:
                self.ledger.acked[number] = Appended(Offset(start), Offset(end), Version(version))
            case ["opening", broker, epoch]:
                self.broker, self.epoch = broker, epoch
            case ["retaining"]:
                self.is_retaining = True
            case ["retained", start]:
                self.start, self.is_retaining = start, False
            case ["killed", step, nth]:
                self.killed = (Failpoint(step), nth)
            case ["done", counts]:
                self.counts = {Failpoint(step): count for step, count in counts.items()}


def run(home: Path, kill: tuple[Failpoint, int] | None = None) -> tuple[Told, int, str]:
    """Let a child work in `home` until it ends."""
    order = json.dumps({"home": str(home), "first": 0, "kill": kill})
    code, out, error = ForkServer.shared().run("tests.crash.archive_child", order, seconds_max=TIMEOUT_SECONDS)
    told = Told()
    for line in out.splitlines():
        told.read(line)
    return told, code, error


@pytest.fixture(scope="session")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[Failpoint, int]:
    """How often a child that lives reaches each step."""
    home = tmp_path_factory.mktemp("counted")
    told, code, error = run(home)
    assert code == 0, error
    check(home, told)
    return told.counts


async def look(log: TieredLog, told: Told) -> None:
    """U6, L2, L13: everything acknowledged is there, once, whole, in order; and a retry gets the first answer."""
    view = log.view
    records = []
    offset = view.start_offset
    while offset < view.next_offset:
        found = await log.read(offset, max_bytes=4000)
        records += records_in(found.data, from_offset=offset)
        offset = found.next_offset
    wrong = told.ledger.violations(records, view.start_offset)
    assert not wrong, wrong
    if not told.is_retaining:
        assert view.start_offset == told.start
    assert view.version >= max((appended.version for appended in told.ledger.acked.values()), default=-1)
    for number in sorted(told.ledger.sent)[-10:]:
        answer = await log.append(batch(number, padding_bytes=PADDING_BYTES), txn_id=f"t{number}")
        assert told.ledger.acked.setdefault(number, answer) == answer


def check(home: Path, told: Told) -> None:
    """The broker that died comes back; then another takes over from it that has never seen the partition."""

    async def brokers() -> None:
        number = max(told.ledger.sent, default=-1) + 1
        for epoch, broker in ((told.epoch + 1, told.broker), (told.epoch + 2, "D"), (told.epoch + 3, told.broker)):
            log = await opened(str(home), broker, epoch, no_failpoints)
            try:
                await look(log, told)
                told.start = log.view.start_offset
                before = log.view.next_offset
                told.ledger.sent.add(number)
                answer = await log.append(batch(number, padding_bytes=PADDING_BYTES), txn_id=f"t{number}")
                assert answer.offset_start == before
                told.ledger.acked[number] = answer
                number += 1
            finally:
                await log.close()
            left = {path.name for path in (home / broker).iterdir()}
            assert PARTITION in left
            assert not [name for name in left if name.endswith((".new", ".discarded"))]

    asyncio.run(brokers())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", ARCHIVE_FAILPOINTS, ids=str)
def test_u2_a_broker_killed_at_this_step_loses_nothing_to_the_next_owner(
    step: Failpoint, counted: dict[Failpoint, int], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """U6, U7, U8, L13: the same broker, and then another."""
    count = counted[step]
    assert count, f"no child reaches {step}: give `every_step` in archive_child.py something that does"
    points = range(1, count + 1) if IS_LONG else [max(1, count // 2)]  # another run may reach it less often
    for nth in points:
        home = tmp_path / str(nth)
        home.mkdir()
        told, code, error = run(home, (step, nth))
        assert code == -signal.SIGKILL, error
        assert told.killed == (step, nth)
        check(home, told)
    record_property("kill_point", str(step))

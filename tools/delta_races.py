"""Compact a Delta table beside others that change it, by delta-rs' own compaction and by ours, and count its rows.

Each round has a new table with one row in each file. All processes begin at the same moment; those of delta-rs have
opened the same version before, ours open the table themselves. A row that is there twice was doubled; a row that was
deleted and is there has come back (docs/adr/0025-table-maintenance-is-ours.md).

    python -m tools.delta_races [--rounds 50] [--json]
"""

import argparse
import json
import multiprocessing
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from sulina.spark.delta_compaction import optimize
from sulina.spark.table_location import TableLocation

FILES = 8
APPENDS = 4
KILL_SECONDS_MAX = 0.05
SPAWN = multiprocessing.get_context("spawn")


def rows(first: int, count: int) -> pa.Table:
    """Return rows that no other call has."""
    return pa.table({"n": pa.array(range(first, first + count), pa.int64())})


# What a process does with a table that it has opened


def compact_by_delta_rs(table: DeltaTable, number: int) -> None:
    """Compact with retries off and an application transaction, the strictest that delta-rs offers."""
    table.optimize.compact(commit_properties=_strict(number))


def z_order_by_delta_rs(table: DeltaTable, number: int) -> None:
    """Order all rows, with the same strict properties."""
    table.optimize.z_order(["n"], commit_properties=_strict(number))


def compact_by_us(table: DeltaTable, _number: int) -> None:
    """Compact with a lease that ends at once, so that the lease keeps nobody else from starting."""
    optimize(TableLocation.parse(table.table_uri), lease_seconds=0)


def z_order_by_us(table: DeltaTable, _number: int) -> None:
    """Order all rows, with the same short lease."""
    optimize(TableLocation.parse(table.table_uri), z_order=["n"], lease_seconds=0)


def append(table: DeltaTable, number: int) -> None:
    """Append some files."""
    for index in range(APPENDS):
        write_deltalake(table.table_uri, rows(1000 * number + index, 1), mode="append")


def stream(table: DeltaTable, number: int) -> None:
    """Append as a stream does: each commit has an application transaction."""
    for index in range(APPENDS):
        properties = CommitProperties(app_transactions=[Transaction("stream", index)])
        write_deltalake(table.table_uri, rows(1000 * number + index, 1), mode="append", commit_properties=properties)


def delete(table: DeltaTable, _number: int) -> None:
    """Delete half of the rows."""
    table.delete(f"n < {FILES // 2}")


def _strict(number: int) -> CommitProperties:
    return CommitProperties(max_commit_retries=0, app_transactions=[Transaction("maintenance", number)])


Act = Callable[[DeltaTable, int], None]


def work(orders: Connection) -> None:
    """Run in a process of its own: open a table, say so, wait, act, say what came of it."""
    while True:
        act, location, number = orders.recv()
        table = DeltaTable(location)
        orders.send("open")
        orders.recv()
        try:
            act(table, number)
            orders.send("done")
        except Exception as error:  # noqa: BLE001 - delta-rs raises plain ones too
            orders.send(type(error).__name__)


@dataclass(slots=True)
class Worker:
    """A process that takes orders."""

    process: SpawnProcess
    orders: Connection

    @classmethod
    def start(cls) -> "Worker":
        """Start a process."""
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def stop(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self.orders.close()


# Forms


@dataclass(frozen=True, slots=True)
class Form:
    """Who is at a table at once."""

    name: str
    acts: tuple[Act, ...]
    is_killed: bool = False  # the first is killed on its way, and its work is done again afterwards


@dataclass(slots=True)
class Outcome:
    """What was found after all rounds of a form."""

    form: str
    rounds: int = 0
    rounds_doubled: int = 0
    rows_doubled: int = 0
    rounds_lost: int = 0
    rounds_returned: int = 0  # deleted rows were there again
    rounds_refused: int = 0  # somebody's change was not made, and it was said


def forms() -> Iterator[Form]:
    """Yield every form, by delta-rs and by us."""
    both = ((compact_by_delta_rs, z_order_by_delta_rs, "delta-rs"), (compact_by_us, z_order_by_us, "ours"))
    for compact, z_order, name in both:
        yield Form(f"{name}: two compactions", (compact, compact))
        yield Form(f"{name}: four compactions", (compact,) * 4)
        yield Form(f"{name}: beside appends", (compact, append))
        yield Form(f"{name}: beside a stream", (compact, stream))
        yield Form(f"{name}: beside a delete", (compact, delete))
        yield Form(f"{name}: killed, and done again", (compact, append), is_killed=True)
        yield Form(f"{name}: two z-orders", (z_order, z_order))


@contextmanager
def new_table() -> Iterator[str]:
    """Make a table with one row a file."""
    location = tempfile.mkdtemp(prefix="sulina-races-")
    try:
        for n in range(FILES):
            write_deltalake(location, rows(n, 1), mode="append")
        yield location
    finally:
        shutil.rmtree(location)


def run(form: Form, rounds: int, chance: random.Random) -> Outcome:
    """Run all rounds of a form."""
    outcome = Outcome(form.name)
    workers = [Worker.start() for _ in form.acts]
    try:
        for _ in range(rounds):
            with new_table() as location:
                answers = round_of(form, location, workers, chance)
                judge(form, location, answers, outcome)
    finally:
        for worker in workers:
            worker.stop()
    return outcome


def round_of(form: Form, location: str, workers: list[Worker], chance: random.Random) -> list[str]:
    """Let all begin at once; return what each said."""
    for number, (act, worker) in enumerate(zip(form.acts, workers, strict=True), start=1):
        worker.orders.send((act, location, number))
    for worker in workers:
        worker.orders.recv()
    for worker in workers:
        worker.orders.send("go")
    if form.is_killed:
        time.sleep(chance.uniform(0, KILL_SECONDS_MAX))
        workers[0].stop()
    answers = [worker.orders.recv() for worker in workers[form.is_killed :]]
    if form.is_killed:
        workers[0] = Worker.start()
        for _ in range(2):
            with suppress(Exception):
                form.acts[0](DeltaTable(location), 100)
    return answers


def judge(form: Form, location: str, answers: list[str], outcome: Outcome) -> None:
    """Count the rows of a table against what each process said that it did."""
    found = DeltaTable(location).to_pyarrow_table().column("n").to_pylist()
    first = form.is_killed  # what was killed says nothing
    expected = set(range(FILES))
    for number, (act, answer) in enumerate(zip(form.acts[first:], answers, strict=True), start=1 + first):
        if answer == "done" and act is delete:
            expected -= set(range(FILES // 2))
        elif answer == "done" and act in (append, stream):
            expected |= {1000 * number + index for index in range(APPENDS)}
    outcome.rounds += 1
    outcome.rows_doubled += len(found) - len(set(found))
    outcome.rounds_doubled += len(found) > len(set(found))
    outcome.rounds_lost += not expected <= set(found)
    outcome.rounds_returned += not set(found) <= expected
    outcome.rounds_refused += any(answer != "done" for answer in answers)


def main() -> None:
    """Run every form and show what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="Rounds of each form.")
    parser.add_argument("--json", action="store_true", help="One object a line.")
    parser.add_argument("--seed", type=int, default=14, help="Of the moments at which processes are killed.")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    for form in forms():
        outcome = run(form, asked.rounds, chance)
        if asked.json:
            print(json.dumps(asdict(outcome)), flush=True)
        else:
            facts = ", ".join(f"{key} {value}" for key, value in asdict(outcome).items() if key != "form")
            print(f"{outcome.form:40} {facts}", flush=True)


if __name__ == "__main__":
    main()

"""The txn_ids that a log remembers: each for a stated time, all within a stated bound.

- A txn_id is known for `seconds` after its commit, by the log's own time (`log_state`): a wrong clock does not shorten
  it.
- No txn_id expires earlier. At the bound a new one is refused instead, until older ones have expired.
- They are in runs, oldest first. A full run is sealed and stored once (`txn_run`), so the cost of a checkpoint depends
  on the new ones only. A run is removed as a whole, when its newest txn_id has expired.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sulina.core.log.txn_run import TxnRef, TxnRun

TXN_SECONDS = 15 * 60.0
TXN_IDS_MAX = 1_000_000
RUN_TXN_IDS_MAX = 1024
_RUNS_AT_LEAST = 64  # of a full memory: removing one run frees a small part of it
_SHARDS = 64  # a dictionary blocks while it grows: small ones do so only briefly


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnLimits:
    """How long txn_ids are remembered, and how many."""

    seconds: float = TXN_SECONDS
    txn_ids_max: int = TXN_IDS_MAX
    run_txn_ids_max: int = RUN_TXN_IDS_MAX

    @property
    def run_max(self) -> int:
        """Return the number of txn_ids at which a run is sealed."""
        return max(1, min(self.run_txn_ids_max, self.txn_ids_max // _RUNS_AT_LEAST))

    def is_over(self, log_ms: int, now_ms: int) -> bool:
        """Return whether a txn_id that was committed at `log_ms` has expired."""
        return now_ms - log_ms > self.seconds * 1000


class TxnMemory:
    """The remembered txn_ids. One thread changes it; another may call `find` and `has_room` meanwhile."""

    __slots__ = ("_newest", "_next_number", "_sealed", "count", "runs", "shards")

    def __init__(self, sealed: Iterable[TxnRun] = (), newest: Iterable[TxnRef] = ()) -> None:
        # The numbers of runs, not the runs: so the garbage collector need not visit a million entries.
        self.shards: tuple[dict[str, int], ...] = ()
        self.runs: dict[int, TxnRun] = {}  # by their numbers, which are given out in turn
        self._next_number = 1  # numbers are never used again: another thread may be looking one up
        self.count = 0  # of remembered txn_ids, with expired ones whose run is still there
        self._newest = self.runs[0] = TxnRun()
        self._sealed = tuple(sealed)  # replaced, never changed: other threads may read it
        for run in self._sealed:
            self._enter(run)
        for txn in newest:
            self.remember(txn)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TxnMemory):
            return NotImplemented
        return (self._sealed, self._newest) == (other._sealed, other._newest)

    __hash__ = None  # type: ignore[assignment]

    @property
    def sealed(self) -> tuple[TxnRun, ...]:
        """Full runs, oldest first."""
        return self._sealed

    @property
    def newest(self) -> tuple[TxnRef, ...]:
        """The txn_ids that are in no sealed run, oldest first."""
        return self._newest.refs()

    def find(self, txn_id: str, now_ms: int, limits: TxnLimits) -> TxnRef | None:
        """Return the offsets that a txn_id got; None if it is not known, or has expired."""
        number = self.shards[hash(txn_id) % _SHARDS].get(txn_id) if self.shards else None
        run = None if number is None else self.runs.get(number)
        if run is None:
            return None
        found = run.find(txn_id)
        return None if limits.is_over(found.log_ms, now_ms) else found

    def has_room(self, waiting: int, now_ms: int, limits: TxnLimits) -> bool:
        """Return whether one more fits in after `waiting` others. Runs that have expired by then do not count."""
        if self.count + waiting < limits.txn_ids_max:
            return True
        runs = (*self._sealed, self._newest)
        return sum(run.count for run in runs if not limits.is_over(run.last_ms, now_ms)) + waiting < limits.txn_ids_max

    def remember(self, txn: TxnRef) -> None:
        """Add the newest txn_id."""
        run, before = self._newest, self._newest.count
        run.add(txn)
        self.count += run.count - before
        self._all_shards()[hash(txn.txn_id) % _SHARDS][txn.txn_id] = run.number

    def remove_expired(self, now_ms: int, limits: TxnLimits) -> None:
        """Remove expired runs. Called before the txn_ids of a commit are added."""
        runs = self._sealed
        while runs and limits.is_over(runs[0].last_ms, now_ms):
            self._leave(runs[0])
            runs = self._sealed = runs[1:]
        if self._newest.count and limits.is_over(self._newest.last_ms, now_ms):
            self._leave(self._newest)
            self._newest = self._begun(TxnRun())

    def seal(self, limits: TxnLimits) -> None:
        """Seal the newest run if it is full. Called after the txn_ids of a commit were added."""
        if self._newest.count >= limits.run_max:
            self._newest.seal()
            self._sealed += (self._newest,)
            self._newest = self._begun(TxnRun())

    def _all_shards(self) -> tuple[dict[str, int], ...]:
        if not self.shards:
            self.shards = tuple({} for _ in range(_SHARDS))
        return self.shards

    def _begun(self, run: TxnRun) -> TxnRun:
        run.number, self._next_number = self._next_number, self._next_number + 1
        self.runs[run.number] = run
        return run

    def _enter(self, run: TxnRun) -> None:
        assert run.is_loaded
        self.count += run.count
        shards, number = self._all_shards(), self._begun(run).number
        for txn_id in run.txn_ids:
            shards[hash(txn_id) % _SHARDS][txn_id] = number

    def _leave(self, run: TxnRun) -> None:
        self.count -= run.count
        shards = self._all_shards()
        for txn_id in run.txn_ids:
            shard = shards[hash(txn_id) % _SHARDS]
            if shard.get(txn_id) == run.number:  # else it was sent again, after it had expired
                del shard[txn_id]
        del self.runs[run.number]

"""What each commit of a Delta table did, from its log. Needs no Spark."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec

from sulina.errors import CorruptCommit
from sulina.spark.delta_compaction import OPERATION
from sulina.spark.delta_log import open_table
from sulina.spark.table_location import LOG_FOLDER, TableLocation

Action = dict[str, Any]


class CommitFacts(msgspec.Struct, kw_only=True):
    """The facts of one version."""

    version: int
    timestamp_ms: int | None
    operation: str
    files_added: int
    files_removed: int
    rows_added: int | None  # None: the files do not say
    bytes_added: int
    bytes_removed: int | None
    changes_data: bool  # False: readers of increments see nothing of it
    transactions: dict[str, int]  # application, and the number that it gave
    user_metadata: str | None


@dataclass(frozen=True, slots=True)
class Actions:
    """The lines of one commit, by their kinds."""

    version: int
    adds: tuple[Action, ...]
    removes: tuple[Action, ...]
    txns: tuple[Action, ...]
    info: Action

    @property
    def removed_paths(self) -> set[str]:
        """Return the paths of removed files, as the store has them."""
        return {unquote(remove["path"]) for remove in self.removes}

    @property
    def new_paths(self) -> set[str]:
        """Return the paths of files that readers of increments read."""
        return {unquote(add["path"]) for add in self.adds if add.get("dataChange", True)}


def read_actions(location: TableLocation, version: int) -> Actions | None:
    """Read one commit. None: it does not exist, or no longer.

    Raises:
        CorruptCommit: it is not JSON.
        ArchiveFailed: the store does not answer.
    """
    name = f"{LOG_FOLDER}/{version:020d}.json"
    data = location.objects().get(name)
    if data is None:
        return None
    try:
        lines = [json.loads(line) for line in bytes(data).splitlines() if line.strip()]
    except ValueError as error:
        raise CorruptCommit(name=f"{location.path_or_uri}/{name}", reason=str(error)) from None

    def of(kind: str) -> tuple[Action, ...]:
        return tuple(line[kind] for line in lines if line.get(kind) is not None)

    return Actions(version, of("add"), of("remove"), of("txn"), next(iter(of("commitInfo")), {}))


def history(location: TableLocation, limit: int) -> list[CommitFacts]:
    """Return the newest commits whose log is still there, newest first.

    Raises:
        TableNotFound: there is no table.
    """
    newest, found = open_table(location).version(), []
    for version in range(newest, max(-1, newest - limit), -1):
        actions = read_actions(location, version)
        if actions is None:
            break
        found.append(facts_of(actions))
    return found


def facts_of(actions: Actions) -> CommitFacts:
    """Count what one commit did."""
    info = actions.info
    return CommitFacts(
        version=actions.version,
        timestamp_ms=info.get("timestamp"),
        operation=_operation(info),
        files_added=len(actions.adds),
        files_removed=len(actions.removes),
        rows_added=_sum(_rows(add) for add in actions.adds),
        bytes_added=sum(add["size"] for add in actions.adds),
        bytes_removed=_sum(remove.get("size") for remove in actions.removes),
        changes_data=any(action.get("dataChange", True) for action in (*actions.adds, *actions.removes)),
        transactions={txn["appId"]: txn["version"] for txn in actions.txns},
        user_metadata=info.get("userMetadata"),
    )


def _operation(info: Action) -> str:
    if OPERATION in info:
        return str(info[OPERATION]).upper()
    mode = str(info.get("operationParameters", {}).get("mode", ""))
    operation = str(info.get("operation", "unknown"))
    return f"{operation} {mode.lower()}" if operation == "WRITE" and mode else operation


def _rows(add: Action) -> int | None:
    try:
        return int(json.loads(add.get("stats") or "{}")["numRecords"])
    except (ValueError, KeyError, TypeError):
        return None


def _sum(counts: Iterable[int | None]) -> int | None:
    found = list(counts)
    return None if None in found else sum(count or 0 for count in found)

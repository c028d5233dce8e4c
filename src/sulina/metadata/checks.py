"""What every metadata store refuses, before anything is written; and its bounds."""

import math
from collections.abc import Sequence

from sulina.errors import InvalidInput
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, VALUE_BYTES_MAX, Compare, Put

KEY_BYTES_MAX = 1024
LEASE_SECONDS_MAX = 365 * 86_400.0
LEASES_MAX = 100_000
WATCHES_MAX = 10_000
WATCH_QUEUE_CHANGES_MAX = 10_000  # that wait for one reader; a single revision may have more
HISTORY_CHANGES_MAX = 10_000  # that a watch can begin before; the newest revision is always kept
HISTORY_BYTES_MAX = 64 << 20  # their keys and values


def check_key(key: str) -> None:
    """A key is "/" and more, encodable, not too long. InvalidInput."""
    if not key.startswith("/"):
        raise InvalidInput(f'metadata key {key[:100]!r} must begin with "/"')
    _check_text(key)


def check_prefix(prefix: str) -> None:
    """A prefix is what some key can begin with; the empty one is that of all keys. InvalidInput."""
    if prefix:
        check_key(prefix)


def check_txn(compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str]) -> int:
    """How many bytes a transaction that may be tried is to write. InvalidInput."""
    for what, operations in (("compares", len(compares)), ("puts and deletes", len(puts) + len(deletes))):
        if operations > TXN_OPERATIONS_MAX:
            raise InvalidInput(f"a transaction may have {TXN_OPERATIONS_MAX} {what}, not {operations}")
    for compare in compares:
        check_key(compare.key)
        if compare.revision < NO_REVISION:
            raise InvalidInput(f"{compare.key} cannot have revision {compare.revision}")
    size_bytes = 0
    for put in puts:
        check_key(put.key)
        size_bytes += len(put.key) + len(put.value)
        if len(put.value) > VALUE_BYTES_MAX:
            raise InvalidInput(f"the value of {put.key} has {len(put.value)} bytes, the limit is {VALUE_BYTES_MAX}")
        if put.lease_id < 0:
            raise InvalidInput(f"{put.key} cannot have lease {put.lease_id}")
    for key in deletes:
        check_key(key)
    written = {*(put.key for put in puts), *deletes}
    if len(written) < len(puts) + len(deletes):
        raise InvalidInput("a transaction puts or deletes a key twice")
    return size_bytes


def check_watch(prefix: str, after: int) -> None:
    """InvalidInput."""
    check_prefix(prefix)
    if after < NO_REVISION:
        raise InvalidInput(f"a watch cannot begin after revision {after}")


def check_compact(revision: int, newest: int) -> None:
    """History can be forgotten as far as there is some. InvalidInput."""
    if not NO_REVISION <= revision <= newest:
        raise InvalidInput(f"history cannot be forgotten up to revision {revision}: the store is at {newest}")


def check_ttl(ttl_seconds: float) -> None:
    """InvalidInput."""
    if not (math.isfinite(ttl_seconds) and 0 < ttl_seconds <= LEASE_SECONDS_MAX):
        raise InvalidInput(f"a lease of {ttl_seconds} seconds is not in (0, {LEASE_SECONDS_MAX:.0f}]")


def _check_text(key: str) -> None:
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"metadata key {key[:100]!r} has no UTF-8 form: {error.reason}") from None
    if size_bytes > KEY_BYTES_MAX:
        raise InvalidInput(f"metadata key {key[:100]!r}... has {size_bytes} bytes, the limit is {KEY_BYTES_MAX}")

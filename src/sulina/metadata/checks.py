"""Checks that every metadata store makes before anything is written, and its limits."""

import math
from collections.abc import Sequence

from sulina.errors import InvalidInput
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, VALUE_BYTES_MAX, Compare, Put

KEY_BYTES_MAX = 1024
LEASE_SECONDS_MAX = 365 * 86_400.0
LEASES_MAX = 100_000
WATCHES_MAX = 10_000
WATCH_QUEUE_CHANGES_MAX = 10_000  # that wait for one reader; a single revision may have more
HISTORY_CHANGES_MAX = 10_000  # that are kept for watches; the newest revision is always kept
HISTORY_BYTES_MAX = 64 << 20  # of their keys and values


def check_key(key: str) -> None:
    """Check that a key begins with "/", can be encoded as UTF-8, and is not too long.

    Raises:
        InvalidInput: it is not valid.
    """
    if not key.startswith("/"):
        raise InvalidInput(f'metadata key {key[:100]!r} must begin with "/"')
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"metadata key {key[:100]!r} cannot be encoded as UTF-8: {error.reason}") from None
    if size_bytes > KEY_BYTES_MAX:
        raise InvalidInput(f"metadata key {key[:100]!r}... has {size_bytes} bytes, the limit is {KEY_BYTES_MAX}")


def check_prefix(prefix: str) -> None:
    """Check that some key can begin with a prefix; all keys begin with the empty one.

    Raises:
        InvalidInput: it is not valid.
    """
    if prefix:
        check_key(prefix)


def check_txn(compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str]) -> int:
    """Check a transaction. Return how many bytes it writes.

    Raises:
        InvalidInput: it has too many operations, an invalid key or value, or a key twice.
    """
    for what, operations in (("compares", len(compares)), ("puts and deletes", len(puts) + len(deletes))):
        if operations > TXN_OPERATIONS_MAX:
            raise InvalidInput(f"the transaction has {operations} {what}, the limit is {TXN_OPERATIONS_MAX}")
    for compare in compares:
        check_key(compare.key)
        if compare.revision < NO_REVISION:
            raise InvalidInput(f"the compare of {compare.key} has revision {compare.revision}, which is negative")
    size_bytes = 0
    for put in puts:
        check_key(put.key)
        size_bytes += len(put.key) + len(put.value)
        if len(put.value) > VALUE_BYTES_MAX:
            raise InvalidInput(f"the value of {put.key} has {len(put.value)} bytes, the limit is {VALUE_BYTES_MAX}")
        if put.lease_id < 0:
            raise InvalidInput(f"the put of {put.key} has lease {put.lease_id}, which is negative")
    for key in deletes:
        check_key(key)
    written = {*(put.key for put in puts), *deletes}
    if len(written) < len(puts) + len(deletes):
        raise InvalidInput("the transaction puts or deletes a key twice: name each key once")
    return size_bytes


def check_watch(prefix: str, after: int) -> None:
    """Check the arguments of a watch.

    Raises:
        InvalidInput: the prefix or the revision is not valid.
    """
    check_prefix(prefix)
    if after < NO_REVISION:
        raise InvalidInput(f"a watch cannot begin after revision {after}, which is negative")


def check_compact(revision: int, newest: int) -> None:
    """Check that a store at revision `newest` can remove its history up to `revision`.

    Raises:
        InvalidInput: the store is not at `revision` yet.
    """
    if not NO_REVISION <= revision <= newest:
        raise InvalidInput(f"the history cannot be removed up to revision {revision}: the store is at {newest}")


def check_ttl(ttl_seconds: float) -> None:
    """Check the duration of a lease.

    Raises:
        InvalidInput: it is not positive, or too long.
    """
    if not (math.isfinite(ttl_seconds) and 0 < ttl_seconds <= LEASE_SECONDS_MAX):
        raise InvalidInput(f"a lease cannot last {ttl_seconds} seconds: use up to {LEASE_SECONDS_MAX:.0f}")

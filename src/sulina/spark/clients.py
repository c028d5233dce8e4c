"""One client for each broker URL and process: connections live as long as the Python worker does."""

import os
from functools import lru_cache

from sulina.client import ClientOptions, SyncClient, connecting

CLIENTS_MAX = 8
TIMEOUT_SECONDS = 60.0  # brokers may be moving a partition, or be restarted


def client_of(url: str) -> SyncClient:
    """Not to be closed by whoever asks."""
    return _client(url, os.getpid())


@lru_cache(maxsize=CLIENTS_MAX)
def _client(url: str, _process: int) -> SyncClient:  # a forked worker needs one of its own
    return connecting(None, url=url, options=ClientOptions(timeout_seconds=TIMEOUT_SECONDS)).sync()

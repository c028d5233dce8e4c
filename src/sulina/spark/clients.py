"""One client for each broker URL and process: connections live as long as the Python worker does."""

import os
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sulina.client import SyncClient

CLIENTS_MAX = 8
TIMEOUT_SECONDS = 60.0  # brokers may be moving a partition, or be restarted


def client_of(url: str) -> "SyncClient":
    """Return the client of this process for a URL. Do not close it: it is shared."""
    return _client(url, os.getpid())


@lru_cache(maxsize=CLIENTS_MAX)
def _client(url: str, _process: int) -> "SyncClient":  # a forked worker needs one of its own
    from sulina.client import Client, ClientOptions, SyncClient  # which processes that only know tables do without

    async def open_client() -> Client:
        return await Client(url=url, options=ClientOptions(timeout_seconds=TIMEOUT_SECONDS))

    return SyncClient(open_client)

"""The store that brokers share, behind `ports.MetadataStore`: in memory for tests, in SQLite for one node, in etcd for
clusters.
"""

from sulina.metadata.memory import MemoryMetadata
from sulina.metadata.sqlite import SqliteMetadata

__all__ = ["MemoryMetadata", "SqliteMetadata"]

"""The control plane: which brokers there are, which one leads, and which one owns each partition. It moves no records.

`Cluster` puts the parts together: `Membership` (the registration and its lease), `ClusterView` (everything under
`/cluster/`), `Election` (which broker leads), `LoadManager` (what the leader does).
"""

from sulina.broker.cluster.assignee import ExistingTopics, OwnAssignment, PartitionAssignee
from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster.membership import Membership
from sulina.broker.cluster.view import ClusterView, Ownership, Versioned
from sulina.broker.options import ClusterOptions

__all__ = [
    "Cluster",
    "ClusterOptions",
    "ClusterView",
    "ExistingTopics",
    "Membership",
    "OwnAssignment",
    "Ownership",
    "PartitionAssignee",
    "Versioned",
]

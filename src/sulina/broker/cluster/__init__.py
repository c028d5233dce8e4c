"""The control plane: who is there, who leads, who owns what. It moves no records.

`Cluster` puts the parts together: `Membership` (a lease, and what may be answered while it lasts), `ClusterView`
(everything under `/cluster/`), `Election` (who leads), `LoadManager` (what the leader does).
"""

from sulina.broker.cluster.assignee import ExistingTopics, PartitionAssignee
from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster.membership import Membership
from sulina.broker.cluster.options import ClusterOptions
from sulina.broker.cluster.view import ClusterView, Ownership, Versioned

__all__ = [
    "Cluster",
    "ClusterOptions",
    "ClusterView",
    "ExistingTopics",
    "Membership",
    "Ownership",
    "PartitionAssignee",
    "Versioned",
]

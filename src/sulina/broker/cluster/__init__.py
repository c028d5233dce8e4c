"""The control plane: who is there, who leads, who owns what. It moves no records.

`Cluster` puts the parts together: `Membership` (a lease, and what may be answered while it lasts), `ClusterView`
(everything under `/cluster/`), `Election` (who leads), `LoadManager` (what the leader does).
"""

from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster.membership import Membership
from sulina.broker.cluster.options import ClusterOptions
from sulina.broker.cluster.owner import Owner, TopicsThatExist
from sulina.broker.cluster.view import ClusterView, Held, Ownership

__all__ = [
    "Cluster",
    "ClusterOptions",
    "ClusterView",
    "Held",
    "Membership",
    "Owner",
    "Ownership",
    "TopicsThatExist",
]

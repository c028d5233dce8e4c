"""Every point of a broker's place in the cluster at which a test may end its process, by name."""

from collections.abc import Callable
from enum import StrEnum


class ClusterStep(StrEnum):
    """What has just been done, or is about to be."""

    MEMBER_REGISTERED = "member.registered"
    MEMBER_LEAVING = "member.leaving"  # the registration is gone, the lease is not

    LEADER_ELECTED = "leader.elected"
    LEADER_CREATED = "leader.created"  # partitions of a new topic wait for an owner
    LEADER_DEAD_FOUND = "leader.dead_found"
    LEADER_UNASSIGNED = "leader.unassigned"  # some partitions of a dead broker wait for an owner
    LEADER_BEFORE_ASSIGN = "leader.before_assign"
    LEADER_ASSIGNED = "leader.assigned"  # some partitions have an owner again
    LEADER_UNLOADS_WANTED = "leader.unloads_wanted"  # of a draining broker, or to balance
    LEADER_SWEPT = "leader.swept"  # something of a topic that is gone


ClusterSteps = Callable[[ClusterStep], None]


def no_cluster_steps(_: ClusterStep) -> None:
    """Nobody is watching."""

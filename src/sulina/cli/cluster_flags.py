"""What makes a node a broker of a cluster, as flags: those of `serve`, which `doctor` checks."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from sulina.config import DEFAULT_HISTORY_SECONDS, DEFAULT_LEASE_SECONDS, DEFAULT_METADATA

_GROUP = Group("Cluster", help="What makes a node a broker of a cluster: docs/guides/cluster.md.")


def _flag(text: str, default: object = None) -> Parameter:
    shown = None if default is None else str(default)
    return Parameter(group=_GROUP, help=text, show_default=shown) if shown else Parameter(group=_GROUP, help=text)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFlags:
    """Where a cluster keeps what its brokers share; without the password, which others could read in a flag."""

    metadata: Annotated[
        str | None,
        _flag("etcd://HOST:PORT[,HOST:PORT…][/PREFIX], or etcds:// for TLS.", DEFAULT_METADATA),
    ] = None
    metadata_ca: Annotated[str | None, _flag("A file: who vouches for etcd's certificate.")] = None
    metadata_cert: Annotated[str | None, _flag("A file: the certificate that this broker shows to etcd.")] = None
    metadata_key: Annotated[str | None, _flag("A file: the key of that certificate.")] = None
    metadata_user: Annotated[
        str | None, _flag("The user of etcd; the password comes from SULINA_METADATA_PASSWORD.")
    ] = None
    objects: Annotated[
        str | None,
        _flag("Where all brokers keep their archive: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR."),
    ] = None
    objects_endpoint: Annotated[
        str | None, _flag("The URL of an object store that is not the cloud's own, such as http://127.0.0.1:9000.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFlags(StoreFlags):
    """Every setting of a cluster."""

    lease_seconds: Annotated[
        float | None,
        _flag("After so long without a word a broker is taken for dead.", f"{DEFAULT_LEASE_SECONDS:g}"),
    ] = None
    metadata_history_seconds: Annotated[
        float | None,
        _flag(
            "How much of etcd's history the leader keeps; what is older is compacted.", f"{DEFAULT_HISTORY_SECONDS:g}"
        ),
    ] = None
    rebalance_seconds: Annotated[
        float | None, _flag("Even out every so often what brokers have to do; without it only when asked.")
    ] = None
    advertise: Annotated[
        str | None, _flag("The URL under which others reach this broker; without it the one of --http.")
    ] = None
    peer_host: Annotated[str | None, _flag("Where to listen for other brokers; without it the host of --http.")] = None
    peer_port: Annotated[int | None, _flag("The port of that; 0 is any that is free.", 0)] = None
    peer_advertise: Annotated[str | None, _flag("HOST:PORT under which other brokers reach this one.")] = None


ALONE = ClusterFlags()
STORES = StoreFlags()

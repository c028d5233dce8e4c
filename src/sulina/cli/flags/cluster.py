"""The cluster options of `serve`, `doctor` and `cluster recover`."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from sulina.config import DEFAULT_HISTORY_SECONDS, DEFAULT_LEASE_SECONDS, DEFAULT_METADATA

_GROUP = Group("Cluster", help="Settings that make a node a broker of a cluster; see docs/guides/cluster.md.")


def _flag(text: str, default: object = None) -> Parameter:
    shown = None if default is None else str(default)
    return Parameter(group=_GROUP, help=text, show_default=shown) if shown else Parameter(group=_GROUP, help=text)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFlags:
    """The stores that the brokers of a cluster share. The password is not a flag: other users could read it."""

    metadata: Annotated[
        str | None,
        _flag("Metadata store: etcd://HOST:PORT,… with an optional /PREFIX, or etcds:// for TLS.", DEFAULT_METADATA),
    ] = None
    metadata_ca: Annotated[str | None, _flag("File with the CA certificate that signed etcd's certificate.")] = None
    metadata_cert: Annotated[str | None, _flag("File with the client certificate that this broker shows to etcd.")] = (
        None
    )
    metadata_key: Annotated[str | None, _flag("File with the private key of --metadata-cert.")] = None
    metadata_user: Annotated[
        str | None, _flag("User name for etcd; the password is read from SULINA_METADATA_PASSWORD.")
    ] = None
    objects: Annotated[
        str | None,
        _flag("Object store for the archive of all brokers: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR."),
    ] = None
    objects_endpoint: Annotated[
        str | None,
        _flag("Endpoint URL of the object store if it is not the cloud's own, such as http://127.0.0.1:9000."),
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFlags(StoreFlags):
    """All settings of a broker in a cluster."""

    lease_seconds: Annotated[
        float | None,
        _flag("Time without contact after which a broker is considered dead.", f"{DEFAULT_LEASE_SECONDS:g}"),
    ] = None
    metadata_history_seconds: Annotated[
        float | None,
        _flag(
            "How much of etcd's history to keep; the leader compacts older revisions.", f"{DEFAULT_HISTORY_SECONDS:g}"
        ),
    ] = None
    rebalance_seconds: Annotated[
        float | None, _flag("Rebalance the brokers at this interval. Default: only on `sulina cluster rebalance`.")
    ] = None
    advertise: Annotated[
        str | None, _flag("URL at which clients and other brokers reach this broker. Default: the address of --http.")
    ] = None
    peer_host: Annotated[str | None, _flag("Host to listen on for other brokers. Default: the host of --http.")] = None
    peer_port: Annotated[int | None, _flag("Port to listen on for other brokers; 0 picks a free port.", 0)] = None
    peer_advertise: Annotated[
        str | None, _flag("HOST:PORT at which other brokers reach this one. Default: --peer-host and --peer-port.")
    ] = None


ALONE = ClusterFlags()
STORES = StoreFlags()

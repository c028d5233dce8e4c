"""Everything that a node is started with. A field with a `Setting` can be set by users.

The options of limits, storage, publish/subscribe and the cluster are declared by the parts that use them.
"""

from dataclasses import dataclass, field
from typing import Annotated, get_args
from urllib.parse import urlsplit

from sulina.addresses import address_text, split_address
from sulina.broker.options import BrokerLimits, ClusterOptions, StorageOptions
from sulina.config import values
from sulina.config.values import DEFAULT_HTTP, DEFAULT_METADATA, EVERYWHERE, EtcdAddress, LogFormat, LogLevel
from sulina.core.delivery.pubsub import PubSubConfig
from sulina.listeners.http_limits import HttpLimits
from sulina.setting import Setting, SettingGroup, text, yes_or_no

DEFAULT_BROKER_ID = "local"
_STORES, _CLUSTER = SettingGroup.STORES, SettingGroup.CLUSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one node."""

    data: Annotated[str, Setting(text, "Directory for all stored data; created if it does not exist.")] = (
        "./sulina-data"
    )
    http: Annotated[
        str, Setting(values.listen_address, "HOST:PORT to listen on for HTTP and WebSocket; port 0 picks a free port.")
    ] = DEFAULT_HTTP
    broker_id: Annotated[
        str,
        Setting(
            values.broker_id, "ID of this node. In a cluster it must be unique, and must stay the same after a restart."
        ),
    ] = DEFAULT_BROKER_ID
    insecure: Annotated[
        bool,
        Setting(
            yes_or_no,
            "Allow an address that other machines can reach, although the node has no TLS and no authentication yet.",
        ),
    ] = False
    log_format: Annotated[
        LogFormat,
        Setting(
            values.one_of(*get_args(LogFormat)),
            "Log format on standard error.",
            default="console in a terminal, json otherwise",
        ),
    ] = "console"
    log_level: Annotated[LogLevel, Setting(values.one_of(*get_args(LogLevel)), "Lowest log level to emit.")] = "info"
    otlp_endpoint: Annotated[
        str | None,
        Setting(
            values.endpoint("http://127.0.0.1:4318"),
            "URL to which traces are sent, such as http://127.0.0.1:4318.",
            has_flag=False,
            also=("OTEL_EXPORTER_OTLP_ENDPOINT",),
        ),
    ] = None
    storage: StorageOptions = field(default_factory=StorageOptions)
    pubsub: PubSubConfig = field(default_factory=PubSubConfig)
    http_limits: HttpLimits = field(default_factory=HttpLimits)
    limits: BrokerLimits = field(default_factory=BrokerLimits)

    # The stores of a cluster
    metadata: Annotated[
        str,
        Setting(
            values.metadata,
            "Metadata store: etcd://HOST:PORT,… with an optional /PREFIX, or etcds:// for TLS.",
            group=_STORES,
        ),
    ] = DEFAULT_METADATA
    metadata_ca: Annotated[
        str | None,
        Setting(
            values.readable_file,
            "File with the CA certificate that signed etcd's certificate.",
            group=_STORES,
            default="the certificates of the system",
        ),
    ] = None
    metadata_cert: Annotated[
        str | None,
        Setting(
            values.readable_file, "File with the client certificate that this broker shows to etcd.", group=_STORES
        ),
    ] = None
    metadata_key: Annotated[
        str | None, Setting(values.readable_file, "File with the private key of --metadata-cert.", group=_STORES)
    ] = None
    metadata_user: Annotated[
        str | None,
        Setting(text, "User name for etcd; the password is read from SULINA_METADATA_PASSWORD.", group=_STORES),
    ] = None
    metadata_password: Annotated[
        str | None,
        Setting(
            values.secret,
            "Password for etcd; there is no flag, because other users of the machine could read it.",
            group=_STORES,
            has_flag=False,
        ),
    ] = field(default=None, repr=False)
    objects: Annotated[
        str | None,
        Setting(
            values.objects,
            "Object store for the archive of all brokers: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR.",
            group=_STORES,
        ),
    ] = None
    objects_endpoint: Annotated[
        str | None,
        Setting(
            values.endpoint("http://127.0.0.1:9000"),
            "Endpoint URL of the object store, such as http://127.0.0.1:9000.",
            group=_STORES,
            default="the cloud's own",
        ),
    ] = None

    # A broker of a cluster
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    advertise: Annotated[
        str | None,
        Setting(
            values.advertised_url,
            "URL at which clients and other brokers reach this broker.",
            group=_CLUSTER,
            default="the address of --http",
        ),
    ] = None
    peer_host: Annotated[
        str | None,
        Setting(
            values.listen_host, "Host to listen on for other brokers.", group=_CLUSTER, default="the host of --http"
        ),
    ] = None
    peer_port: Annotated[
        int, Setting(values.listen_port, "Port to listen on for other brokers; 0 picks a free port.", group=_CLUSTER)
    ] = 0
    peer_advertise: Annotated[
        str | None,
        Setting(
            values.advertised_address,
            "HOST:PORT at which other brokers reach this one.",
            group=_CLUSTER,
            default="--peer-host and --peer-port",
        ),
    ] = None

    @property
    def http_host(self) -> str:
        """Return the host on which this node listens for HTTP."""
        return split_address(self.http)[0]

    @property
    def http_port(self) -> int:
        """Return the port on which this node listens for HTTP; 0: any that is free."""
        return split_address(self.http)[1]

    @property
    def peer_listen_host(self) -> str:
        """Return the host on which this broker listens for others."""
        return self.peer_host or self.http_host

    def peer_address(self, port: int) -> str:
        """Return the address that other brokers are told, given the port that this one listens on for them."""
        if self.peer_advertise is not None:
            return self.peer_advertise
        host = self.peer_listen_host
        if host in EVERYWHERE and self.advertise is not None:
            host = urlsplit(self.advertise).hostname or host
        return address_text(host, port)

    @property
    def etcd(self) -> EtcdAddress | None:
        """Return where etcd is; None: the metadata are in the data directory, and there is no cluster."""
        return None if self.metadata == DEFAULT_METADATA else values.etcd_address(self.metadata, "metadata")

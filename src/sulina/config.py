"""The settings of a node, read once: flags over the environment over a TOML file over the defaults.

An error names the source of a setting and its name there. Nothing is guessed: a key that does not exist is an error. A
secret is never shown, not even in the error about it.
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from sulina.addresses import address_text, split_address
from sulina.errors import InvalidName, InvalidSettings
from sulina.types import checked_broker

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

DEFAULT_FILE = "sulina.toml"
DEFAULT_DATA = "./sulina-data"
DEFAULT_HTTP = "127.0.0.1:8080"
DEFAULT_BROKER_ID = "local"
DEFAULT_METADATA = "sqlite"
DEFAULT_LEASE_SECONDS = 10.0
DEFAULT_HISTORY_SECONDS = 300.0
DEFAULT_SUBSCRIBER_TIMEOUT_SECONDS = 5.0
DEFAULT_SUSPENDED_TTL_SECONDS = 60.0
DEFAULT_METRICS_EVENT_SECONDS = 10.0
DEFAULT_RETENTION_INTERVAL_SECONDS = 60.0
ETCD_PORT = 2379
ETCD_PREFIX = "/sulina"
PREFIX = "SULINA_"
LIMITS = "limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a node takes on before it says no."""

    connections_max: int = 10_000  # open, HTTP and WebSocket together
    body_bytes_max: int = 32 << 20  # of one request
    head_timeout_seconds: float = 10.0  # for the head of a request to come
    body_timeout_seconds: float = 30.0  # for its body, and longer while bytes come fast enough
    topics_max: int = 10_000
    partitions_max: int = 20_000  # of all topics together
    subscriptions_max: int = 20_000  # of all topics together
    consumers_max: int = 20_000  # attached
    waiting_bytes_max: int = 256 << 20  # published and not yet committed, of all partitions together


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAddress:
    """Where a cluster keeps its metadata."""

    endpoints: tuple[str, ...]  # host:port
    prefix: str  # of all keys
    is_tls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a node is started with."""

    data: str = DEFAULT_DATA
    http_host: str = "127.0.0.1"
    http_port: int = 8080  # 0: any that is free
    broker_id: str = DEFAULT_BROKER_ID
    insecure: bool = False
    log_format: LogFormat = "console"
    log_level: LogLevel = "info"
    otlp_endpoint: str | None = None  # None: no traces
    limits: Limits = field(default_factory=Limits)
    compress_checkpoints: bool = False  # of the logs on disk
    retention_interval_seconds: float = DEFAULT_RETENTION_INTERVAL_SECONDS  # between two rounds of retention
    subscriber_timeout_seconds: float = DEFAULT_SUBSCRIBER_TIMEOUT_SECONDS  # for a subscriber to ack a batch
    suspended_ttl_seconds: float = DEFAULT_SUSPENDED_TTL_SECONDS  # without a success, until a subscriber is removed
    metrics_event_seconds: float = DEFAULT_METRICS_EVENT_SECONDS  # between snapshots of metrics on the event stream

    # Of a cluster
    metadata: str = DEFAULT_METADATA  # or etcd://host:port,…/prefix, etcds:// for TLS
    metadata_ca: str | None = None  # files
    metadata_cert: str | None = None
    metadata_key: str | None = None
    metadata_user: str | None = None
    metadata_password: str | None = field(default=None, repr=False)
    objects: str | None = None  # s3://, gs://, az:// or file:///
    objects_endpoint: str | None = None  # None: the cloud's own
    lease_seconds: float = DEFAULT_LEASE_SECONDS  # without a renewal, until others take a broker for dead
    metadata_history_seconds: float = DEFAULT_HISTORY_SECONDS  # of etcd's history that the leader keeps
    rebalance_seconds: float | None = None  # between two automatic rebalances; None: only when asked
    advertise: str | None = None  # None: the address it listens on
    peer_host: str | None = None  # None: that of HTTP
    peer_port: int = 0  # 0: any that is free
    peer_advertise: str | None = None  # None: where it listens for other brokers

    @property
    def peer_listen_host(self) -> str:
        """Return the host on which this broker listens for others."""
        return self.peer_host or self.http_host

    def peer_address(self, port: int) -> str:
        """Return the address that other brokers are told, given the port that this one listens on for them."""
        if self.peer_advertise is not None:
            return self.peer_advertise
        host = self.peer_listen_host
        if host in _EVERYWHERE and self.advertise is not None:
            host = urlsplit(self.advertise).hostname or host
        return address_text(host, port)

    @property
    def etcd(self) -> EtcdAddress | None:
        """Return where etcd is; None: the metadata are in the data directory, and there is no cluster."""
        return None if self.metadata == DEFAULT_METADATA else _etcd_address(self.metadata, "metadata")


def load(
    flags: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
    log_format: LogFormat = "console",
) -> Settings:
    """Return the settings out of all their sources.

    `flags` are named like the keys of the file (`http`, `broker_id`, …); None is a flag that was not given. `file` must
    exist; without it `SULINA_CONFIG` counts, then `sulina.toml` if there is one. `log_format` is the default of that
    setting.

    Raises:
        InvalidSettings: a setting is wrong; it names the setting and its source.
    """
    environment = os.environ if environment is None else environment
    found: dict[str, Any] = {"http": DEFAULT_HTTP, "log_format": log_format}
    names = {"http": "the default of http"}
    for name, key, value in _stated(flags, environment, file):
        if value is not None:
            found[key] = _KEYS[key](value, name)
            names[key] = name
    limits = {key.removeprefix("limits."): found.pop(key) for key in list(found) if key.startswith("limits.")}
    host, port = _address(found.pop("http"), names["http"])
    settings = Settings(http_host=host, http_port=port, limits=Limits(**limits), **found)
    _check_exposure(settings.http_host, settings, names["http"])
    _check_exposure(settings.peer_listen_host, settings, names.get("peer_host", names["http"]))
    _check_metadata(settings, names)
    if settings.objects_endpoint is not None and (settings.objects is None or settings.objects.startswith("file:")):
        raise InvalidSettings(
            f"{names['objects_endpoint']}: needs objects as s3://…, gs://… or az://…, the store that has this endpoint"
        )
    if settings.etcd is not None:
        _check_member(settings, names)
    return settings


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def environment_name(key: str) -> str:
    """Return the variable that sets a key: `SULINA_BROKER_ID`, `SULINA_LIMITS_TOPICS_MAX`."""
    return PREFIX + key.replace(".", "_").upper()


def _stated(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None
) -> Iterator[tuple[str, str, Any]]:
    """Yield the settings that are given, from the weakest source to the strongest: name there, key, value."""
    yield from _from_file(file or environment.get(PREFIX + "CONFIG"))
    names = {"OTEL_EXPORTER_OTLP_ENDPOINT": "otlp_endpoint"} | {environment_name(key): key for key in _KEYS}
    for name, key in names.items():
        yield f"environment {name}", key, environment.get(name) or None  # empty is not given
    for key, value in flags.items():
        yield f"flag --{key.replace('_', '-')}", key, value


def _from_file(path: str | None) -> Iterator[tuple[str, str, Any]]:
    name = path or DEFAULT_FILE
    try:
        with open(name, "rb") as file:
            document = tomllib.load(file)
    except FileNotFoundError:
        if path is None:
            return
        raise InvalidSettings(f"{name}: there is no such file") from None
    except OSError as error:
        raise InvalidSettings(f"{name}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{name}: not TOML: {error}") from None
    limits = document.pop(LIMITS, {})
    if not isinstance(limits, dict):
        raise InvalidSettings(f"{name}: limits: must be a table, [limits]")
    for key, value in [*document.items(), *((f"{LIMITS}.{key}", value) for key, value in limits.items())]:
        if key not in _KEYS:
            raise InvalidSettings(f"{name}: {key}: there is no such setting{_nearest(key)}")
        yield f"{name}: {key}", key, value


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, _KEYS, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(_KEYS)}"


def _check_exposure(host: str, settings: Settings, name: str) -> None:
    if not is_loopback(host) and not settings.insecure:
        raise InvalidSettings(
            f"{name}: {host} can be reached from other machines, and this node has neither TLS "
            "nor authentication; listen on 127.0.0.1, or say --insecure if the network is trusted"
        )


def _check_metadata(settings: Settings, names: Mapping[str, str]) -> None:
    """Check the settings that need etcd or each other."""
    etcd = settings.etcd
    for key in ("metadata_ca", "metadata_cert", "metadata_key"):
        if getattr(settings, key) is not None and (etcd is None or not etcd.is_tls):
            raise InvalidSettings(f"{names[key]}: counts for TLS only; say metadata as etcds://HOST:PORT")
    for key in ("metadata_user", "metadata_password"):
        if getattr(settings, key) is not None and etcd is None:
            raise InvalidSettings(f"{names[key]}: counts for etcd only; say metadata as etcd://HOST:PORT")
    for one, other in (
        ("metadata_cert", "metadata_key"),
        ("metadata_key", "metadata_cert"),
        ("metadata_user", "metadata_password"),
        ("metadata_password", "metadata_user"),
    ):
        if getattr(settings, one) is not None and getattr(settings, other) is None:
            raise InvalidSettings(f"{names[one]}: needs {other} too ({environment_name(other)})")


def _check_member(settings: Settings, names: Mapping[str, str]) -> None:
    """Check the settings that a broker of a cluster needs: its name, the object store, and addresses for others."""
    source = names["metadata"]
    if "broker_id" not in names:
        raise InvalidSettings(
            f"{source}: a broker of a cluster needs a name that no other has; say --broker-id b1 "
            f"({environment_name('broker_id')})"
        )
    if settings.objects is None:
        raise InvalidSettings(
            f"{source}: a cluster needs an object store that all its brokers reach; say --objects s3://BUCKET/PREFIX, "
            f"or --objects file:///DIR for a directory that they share ({environment_name('objects')})"
        )
    if settings.advertise is None and settings.http_host in _EVERYWHERE:
        raise InvalidSettings(
            f"{names['http']}: {settings.http_host} is no address that others could use; say where they reach this "
            f"broker with --advertise http://HOST:PORT ({environment_name('advertise')})"
        )
    if settings.peer_advertise is None and settings.advertise is None and settings.peer_listen_host in _EVERYWHERE:
        raise InvalidSettings(
            f"{names['peer_host']}: {settings.peer_host} is no address that other brokers could use; say where they "
            f"reach this one with --peer-advertise HOST:PORT ({environment_name('peer_advertise')})"
        )


_EVERYWHERE = {"0.0.0.0", "::"}


# How each value is read: given the value and what to call it in an error.


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InvalidSettings(f"{name}: must be text that is not empty, not {value!r}")
    return value


def _broker_id(value: Any, name: str) -> str:
    try:
        return checked_broker(_text(value, name))
    except InvalidName as error:
        raise InvalidSettings(f"{name}: {error}") from None


def _yes_or_no(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _YES | _NO:
        return value.lower() in _YES
    raise InvalidSettings(f"{name}: must be true or false, not {value!r}")


_YES = {"true", "1", "yes", "on"}
_NO = {"false", "0", "no", "off"}


def _one_of(choices: tuple[str, ...]) -> Callable[[Any, str], str]:
    def read(value: Any, name: str) -> str:
        if value not in choices:
            raise InvalidSettings(f"{name}: must be {' or '.join(choices)}, not {value!r}")
        return str(value)

    return read


def _count(value: Any, name: str) -> int:
    number = value
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value, re.ASCII):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**63:
        raise InvalidSettings(f"{name}: must be a whole number above 0, not {value!r}")
    return number


def _endpoint(example: str) -> Callable[[Any, str], str]:
    def read(value: Any, name: str) -> str:
        text = _without_secret(_text(value, name), name)
        if not re.fullmatch(r"https?://[^\s/]+\S*", text):
            raise InvalidSettings(f"{name}: must be a URL such as {example}, not {value!r}")
        return text

    return read


def _without_secret(url: str, name: str) -> str:
    """Return a URL, which is shown and logged, if it holds no user or password."""
    if "@" in url:
        raise InvalidSettings(f"{name}: must not hold a user or a password; they have settings of their own")
    return url


def _file(value: Any, name: str) -> str:
    path = _text(value, name)
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        raise InvalidSettings(f"{name}: {path}: {error.strerror}") from None


def _secret(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidSettings(f"{name}: must be text that is not empty")
    return value


def _seconds(least: float, most: float) -> Callable[[Any, str], float]:
    def read(value: Any, name: str) -> float:
        is_text = isinstance(value, str) and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        number = float(value) if is_text or is_number else -1.0
        if not least <= number <= most:
            raise InvalidSettings(f"{name}: must be seconds from {least:g} to {most:g}, not {value!r}")
        return number

    return read


def _metadata(value: Any, name: str) -> str:
    if _text(value, name) != DEFAULT_METADATA:
        _etcd_address(value, name)
    return str(value)


def _etcd_address(url: str, name: str) -> EtcdAddress:
    """Read `etcd://host[:port][,host[:port]…][/prefix]`."""
    scheme, colon, rest = _without_secret(url, name).partition("://")
    if not colon or scheme not in ("etcd", "etcds"):
        raise InvalidSettings(
            f"{name}: must be {DEFAULT_METADATA}, etcd://HOST:PORT,… with an optional /PREFIX, or etcds:// for TLS, "
            f"not {url!r}"
        )
    hosts, slash, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    if not re.fullmatch(r"([a-zA-Z0-9._-]+(/[a-zA-Z0-9._-]+)*)?", prefix, re.ASCII):
        raise InvalidSettings(f"{name}: the prefix of keys, /{prefix}, must be of letters, digits, '.', '_', '-', '/'")
    endpoints = tuple(_etcd_endpoint(host.strip(), name) for host in hosts.split(","))
    return EtcdAddress(
        endpoints=endpoints, prefix=f"/{prefix}" if slash and prefix else ETCD_PREFIX, is_tls=scheme == "etcds"
    )


def _etcd_endpoint(text: str, name: str) -> str:
    try:
        host, port = split_address(text, default_port=ETCD_PORT)
    except InvalidSettings:
        host, port = "", 0
    if not port:
        raise InvalidSettings(f"{name}: {text!r} is not HOST:PORT of an etcd server, such as 127.0.0.1:{ETCD_PORT}")
    return address_text(host, port)


def _objects(value: Any, name: str) -> str:
    """Read `s3://bucket/prefix`, `gs://…`, `az://…`, or a directory: `file:///dir`."""
    url = _without_secret(_text(value, name), name)
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        if not re.fullmatch(r"/[^?#\s]*[^?#\s/]/*", rest):
            raise InvalidSettings(f"{name}: must name a directory by its whole path, file:///DIR, not {value!r}")
    elif scheme not in ("s3", "gs", "az") or not re.fullmatch(r"[^\s/?#]+(/[^\s?#]*)?", rest):
        raise InvalidSettings(
            f"{name}: must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIR, "
            f"not {value!r}"
        )
    return url


def _advertise(value: Any, name: str) -> str:
    url = _without_secret(_text(value, name), name).rstrip("/")
    wrong = f"{name}: must be a URL such as http://broker-1.example:8080, without a path, not {value!r}"
    try:
        parts = urlsplit(url)
        is_right = parts.port != 0 and parts.hostname is not None
    except ValueError:
        raise InvalidSettings(wrong) from None
    if not is_right or not re.fullmatch(r"https?://[a-zA-Z0-9._:\[\]-]+", url) or parts.hostname in _EVERYWHERE:
        raise InvalidSettings(wrong)
    return url


def _address(value: str, name: str) -> tuple[str, int]:
    """Read `host:port`, `[v6]:port`, `:port` or `port`; without a host it is loopback."""
    try:
        return split_address(value, default_host="127.0.0.1")
    except InvalidSettings:
        raise InvalidSettings(f"{name}: must be HOST:PORT such as {DEFAULT_HTTP}, not {value!r}") from None


def _host(value: Any, name: str) -> str:
    """Read a host name or an address; one of IPv6 with its brackets or without."""
    host = _text(value, name).removeprefix("[").removesuffix("]")
    if not re.fullmatch(r"[a-zA-Z0-9._-]+|[0-9a-fA-F.]*:[0-9a-fA-F.]*:[0-9a-fA-F:.]*", host, re.ASCII):
        raise InvalidSettings(f"{name}: must be a host such as 127.0.0.1, without a port, not {value!r}")
    return host


def _port(value: Any, name: str) -> int:
    number = int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,5}", value, re.ASCII) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 65536:
        raise InvalidSettings(f"{name}: must be a port, from 0 to 65535, not {value!r}")
    return number


def _peer_advertise(value: Any, name: str) -> str:
    text = _text(value, name)
    try:
        host, port = split_address(text)
    except InvalidSettings:
        host, port = "", 0
    if not port or host in _EVERYWHERE:
        raise InvalidSettings(f"{name}: must be HOST:PORT such as broker-1.example:9090, not {value!r}")
    return text


_KEYS: dict[str, Callable[[Any, str], Any]] = {
    "data": _text,
    "http": _text,
    "broker_id": _broker_id,
    "insecure": _yes_or_no,
    "log_format": _one_of(get_args(LogFormat)),
    "log_level": _one_of(get_args(LogLevel)),
    "otlp_endpoint": _endpoint("http://127.0.0.1:4318"),
    "compress_checkpoints": _yes_or_no,
    "retention_interval_seconds": _seconds(0.1, 3600),
    "subscriber_timeout_seconds": _seconds(0.05, 3600),
    "suspended_ttl_seconds": _seconds(0.05, 86400),
    "metrics_event_seconds": _seconds(0.05, 86400),
    "metadata": _metadata,
    "metadata_ca": _file,
    "metadata_cert": _file,
    "metadata_key": _file,
    "metadata_user": _text,
    "metadata_password": _secret,
    "objects": _objects,
    "objects_endpoint": _endpoint("http://127.0.0.1:9000"),
    "lease_seconds": _seconds(1, 600),
    "metadata_history_seconds": _seconds(1, 86400),
    "rebalance_seconds": _seconds(1, 86400),
    "advertise": _advertise,
    "peer_host": _host,
    "peer_port": _port,
    "peer_advertise": _peer_advertise,
    **{f"{LIMITS}.{limit.name}": _seconds(0.1, 3600) if limit.type is float else _count for limit in fields(Limits)},
}

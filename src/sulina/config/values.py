"""How the values of a node's own settings are read.

A reader takes a value and the name that an error gives it. Readers that fit any setting are in `sulina.setting`.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from sulina.addresses import address_text, split_address
from sulina.errors import InvalidName, InvalidSettings
from sulina.setting import ReadValue, text
from sulina.types import checked_broker

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

DEFAULT_HTTP = "127.0.0.1:8080"
DEFAULT_METADATA = "sqlite"
ETCD_PORT = 2379
ETCD_PREFIX = "/sulina"
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # addresses to listen on that nobody can connect to


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAddress:
    """Where a cluster keeps its metadata."""

    endpoints: tuple[str, ...]  # host:port
    prefix: str  # of all keys
    is_tls: bool


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def broker_id(value: Any, name: str) -> str:
    """Read the name of a broker.

    Raises:
        InvalidSettings: it is not a valid name.
    """
    try:
        return checked_broker(text(value, name))
    except InvalidName as error:
        raise InvalidSettings(f"{name}: {error}") from None


def one_of(*choices: str) -> ReadValue:
    """Return a reader of one of these words."""

    def read(value: Any, name: str) -> str:
        if value not in choices:
            raise InvalidSettings(f"{name}: must be {' or '.join(choices)}, not {value!r}")
        return str(value)

    return read


def endpoint(example: str) -> ReadValue:
    """Return a reader of an HTTP URL, with an example for its error."""

    def read(value: Any, name: str) -> str:
        url = _without_secret(text(value, name), name)
        if not re.fullmatch(r"https?://[^\s/]+\S*", url):
            raise InvalidSettings(f"{name}: must be a URL such as {example}, not {value!r}")
        return url

    return read


def _without_secret(url: str, name: str) -> str:
    """Return a URL, which is shown and logged, if it holds no user or password."""
    if "@" in url:
        raise InvalidSettings(f"{name}: must not hold a user or a password; they have settings of their own")
    return url


def readable_file(value: Any, name: str) -> str:
    """Read the path of a file, which is opened to check it.

    Raises:
        InvalidSettings: the file cannot be read.
    """
    path = text(value, name)
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        raise InvalidSettings(f"{name}: {path}: {error.strerror}") from None


def secret(value: Any, name: str) -> str:
    """Read a secret.

    Raises:
        InvalidSettings: it is not text, or empty; the error does not show the value.
    """
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidSettings(f"{name}: must be text that is not empty")
    return value


def metadata(value: Any, name: str) -> str:
    """Read `sqlite`, or the URL of an etcd.

    Raises:
        InvalidSettings: the value is neither.
    """
    if text(value, name) != DEFAULT_METADATA:
        etcd_address(value, name)
    return str(value)


def etcd_address(url: str, name: str) -> EtcdAddress:
    """Return the parts of `etcd://host[:port][,host[:port]…][/prefix]`.

    Raises:
        InvalidSettings: the URL is not of this form.
    """
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


def _etcd_endpoint(host_and_port: str, name: str) -> str:
    try:
        host, port = split_address(host_and_port, default_port=ETCD_PORT)
    except InvalidSettings:
        host, port = "", 0
    if not port:
        raise InvalidSettings(
            f"{name}: {host_and_port!r} is not HOST:PORT of an etcd server, such as 127.0.0.1:{ETCD_PORT}"
        )
    return address_text(host, port)


def objects(value: Any, name: str) -> str:
    """Read the URL of an object store: `s3://bucket/prefix`, `gs://…`, `az://…`, or a directory: `file:///dir`.

    Raises:
        InvalidSettings: the value is something else.
    """
    url = _without_secret(text(value, name), name)
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


def advertised_url(value: Any, name: str) -> str:
    """Read the URL at which others reach a broker.

    Raises:
        InvalidSettings: the value is not such a URL, or has a path.
    """
    url = _without_secret(text(value, name), name).rstrip("/")
    wrong = f"{name}: must be a URL such as http://broker-1.example:8080, without a path, not {value!r}"
    try:
        parts = urlsplit(url)
        is_right = parts.port != 0 and parts.hostname is not None
    except ValueError:
        raise InvalidSettings(wrong) from None
    if not is_right or not re.fullmatch(r"https?://[a-zA-Z0-9._:\[\]-]+", url) or parts.hostname in EVERYWHERE:
        raise InvalidSettings(wrong)
    return url


def listen_address(value: Any, name: str) -> str:
    """Read `host:port`, `[v6]:port`, `:port` or `port`; without a host it is loopback.

    Raises:
        InvalidSettings: the value is something else.
    """
    try:
        return address_text(*split_address(text(value, name), default_host="127.0.0.1"))
    except InvalidSettings:
        raise InvalidSettings(f"{name}: must be HOST:PORT such as {DEFAULT_HTTP}, not {value!r}") from None


def listen_host(value: Any, name: str) -> str:
    """Read a host name or an address; one of IPv6 with its brackets or without.

    Raises:
        InvalidSettings: the value is something else.
    """
    host = text(value, name).removeprefix("[").removesuffix("]")
    if not re.fullmatch(r"[a-zA-Z0-9._-]+|[0-9a-fA-F.]*:[0-9a-fA-F.]*:[0-9a-fA-F:.]*", host, re.ASCII):
        raise InvalidSettings(f"{name}: must be a host such as 127.0.0.1, without a port, not {value!r}")
    return host


def listen_port(value: Any, name: str) -> int:
    """Read a port, or 0.

    Raises:
        InvalidSettings: the value is something else.
    """
    number = int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,5}", value, re.ASCII) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 65536:
        raise InvalidSettings(f"{name}: must be a port, from 0 to 65535, not {value!r}")
    return number


def advertised_address(value: Any, name: str) -> str:
    """Read `host:port` at which other brokers reach a broker.

    Raises:
        InvalidSettings: the value is something else.
    """
    address = text(value, name)
    try:
        host, port = split_address(address)
    except InvalidSettings:
        host, port = "", 0
    if not port or host in EVERYWHERE:
        raise InvalidSettings(f"{name}: must be HOST:PORT such as broker-1.example:9090, not {value!r}")
    return address

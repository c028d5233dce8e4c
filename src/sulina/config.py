"""The settings of a node, read once: flags over the environment over a TOML file over the defaults.

Whatever is wrong is said with the place it came from and the name it has there. Nothing is guessed: a key that does not
exist is an error, not a comment.
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from sulina.errors import InvalidSettings

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

DEFAULT_FILE = "sulina.toml"
DEFAULT_DATA = "./sulina-data"
DEFAULT_HTTP = "127.0.0.1:8080"
DEFAULT_BROKER_ID = "local"
PREFIX = "SULINA_"
LIMITS = "limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a node takes on before it says no."""

    connections_max: int = 10_000  # open, HTTP and WebSocket together
    body_bytes_max: int = 32 << 20  # of one request
    topics_max: int = 10_000
    partitions_max: int = 20_000  # of all topics together
    subscriptions_max: int = 20_000  # of all topics together
    consumers_max: int = 20_000  # attached
    waiting_bytes_max: int = 256 << 20  # published and not yet committed, of all partitions together


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


def load(
    flags: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
    log_format: LogFormat = "console",
) -> Settings:
    """The settings out of all their sources.

    `flags` are named like the keys of the file (`http`, `broker_id`, …); None is a flag that was not given. `file` must
    exist; without it `SULINA_CONFIG` counts, then `sulina.toml` if there is one. `log_format` is the default of that
    setting. InvalidSettings says what is wrong, and where.
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
    _check_exposure(settings, names["http"])
    return settings


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_text(host: str, port: int) -> str:
    """`host:port`, as it is given and shown."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def environment_name(key: str) -> str:
    """The variable that sets `key`: `SULINA_BROKER_ID`, `SULINA_LIMITS_TOPICS_MAX`."""
    return PREFIX + key.replace(".", "_").upper()


def _stated(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None
) -> Iterator[tuple[str, str, Any]]:
    """What is said, from the weakest source to the strongest: its name there, the key, the value."""
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


def _check_exposure(settings: Settings, name: str) -> None:
    if not is_loopback(settings.http_host) and not settings.insecure:
        raise InvalidSettings(
            f"{name}: {settings.http_host} can be reached from other machines, and this node has neither TLS "
            "nor authentication; listen on 127.0.0.1, or say --insecure if the network is trusted"
        )


# How each value is read: given the value and what to call it in an error.


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InvalidSettings(f"{name}: must be text that is not empty, not {value!r}")
    return value


def _broker_id(value: Any, name: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,199}", _text(value, name), re.ASCII):
        raise InvalidSettings(f"{name}: {value!r} must be of letters, digits, '.', '_' and '-', at most 200")
    return str(value)


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


def _endpoint(value: Any, name: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+\S*", _text(value, name)):
        raise InvalidSettings(f"{name}: must be a URL such as http://127.0.0.1:4318, not {value!r}")
    return str(value)


def _address(value: str, name: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port`, `:port` or `port`; without a host it is loopback."""
    host, colon, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_bare_v6 = colon and ":" in host and not value.startswith("[")
    if is_bare_v6 or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535 or re.search(r"[\s/\[\]]", host):
        raise InvalidSettings(f"{name}: must be HOST:PORT such as {DEFAULT_HTTP}, not {value!r}")
    return host or "127.0.0.1", int(port)


_KEYS: dict[str, Callable[[Any, str], Any]] = {
    "data": _text,
    "http": _text,
    "broker_id": _broker_id,
    "insecure": _yes_or_no,
    "log_format": _one_of(get_args(LogFormat)),
    "log_level": _one_of(get_args(LogLevel)),
    "otlp_endpoint": _endpoint,
    **{f"{LIMITS}.{limit.name}": _count for limit in fields(Limits)},
}

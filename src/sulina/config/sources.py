"""The settings of a node, read once: flags over the environment over a TOML file over the defaults.

An error names the source of a setting and its name there. Nothing is guessed: a key that does not exist is an error. A
secret is never shown, not even in the error about it.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sulina.config.declared import DECLARED, PREFIX, environment_name, flag_name
from sulina.config.settings import Settings
from sulina.config.values import EVERYWHERE, LogFormat, is_loopback
from sulina.errors import InvalidSettings
from sulina.setting import SettingGroup

DEFAULT_FILE = "sulina.toml"
_LIMITS = SettingGroup.LIMITS.value


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
    found: dict[str, Any] = {"log_format": log_format}
    names = {"http": "the default of http"}
    for name, key, value in _stated(flags, environment, file):
        if value is not None:
            found[key] = DECLARED[key].setting.read(value, name)
            names[key] = name
    settings = _settings(found)
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


def _settings(found: Mapping[str, Any]) -> Settings:
    """Return the settings with the values that were found, by their keys."""
    settings = Settings()
    for key, value in found.items():
        declared = DECLARED[key]
        changed = {declared.field: value}
        if declared.part is not None:
            changed = {declared.part: replace(getattr(settings, declared.part), **changed)}
        settings = replace(settings, **changed)
    return settings


def _stated(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None
) -> Iterator[tuple[str, str, Any]]:
    """Yield the settings that are given, from the weakest source to the strongest: name there, key, value."""
    yield from _from_file(file or environment.get(PREFIX + "CONFIG"))
    for key, declared in DECLARED.items():
        for variable in declared.variables:
            yield f"environment {variable}", key, environment.get(variable) or None  # empty is not given
    for key, value in flags.items():
        yield f"flag {flag_name(key)}", key, value


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
    limits = document.pop(_LIMITS, {})
    if not isinstance(limits, dict):
        raise InvalidSettings(f"{name}: limits: must be a table, [limits]")
    for key, value in [*document.items(), *((f"{_LIMITS}.{key}", value) for key, value in limits.items())]:
        if key not in DECLARED:
            raise InvalidSettings(f"{name}: {key}: there is no such setting{_nearest(key)}")
        yield f"{name}: {key}", key, value


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, DECLARED, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(DECLARED)}"


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
    if settings.advertise is None and settings.http_host in EVERYWHERE:
        raise InvalidSettings(
            f"{names['http']}: {settings.http_host} is no address that others could use; say where they reach this "
            f"broker with --advertise http://HOST:PORT ({environment_name('advertise')})"
        )
    if settings.peer_advertise is None and settings.advertise is None and settings.peer_listen_host in EVERYWHERE:
        raise InvalidSettings(
            f"{names['peer_host']}: {settings.peer_host} is no address that other brokers could use; say where they "
            f"reach this one with --peer-advertise HOST:PORT ({environment_name('peer_advertise')})"
        )

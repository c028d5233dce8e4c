"""HOST:PORT, as people write it and as brokers register it."""

import re

from sulina.errors import InvalidSettings

_ADDRESS = re.compile(
    r"(?:\[(?P<v6>[0-9a-fA-F:.]+(?:%[a-zA-Z0-9._-]+)?)\]|(?P<name>[a-zA-Z0-9._-]+))?(?::(?P<port>\d{1,5}))?", re.ASCII
)


def address_text(host: str, port: int) -> str:
    """Return `host:port`, with brackets around a host of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str, *, default_host: str | None = None, default_port: int | None = None) -> tuple[str, int]:
    """Return the host and the port of `host:port` or `[v6]:port`.

    With a default host, `:port` and `port` are addresses too; with a default port, `host` is one.

    Raises:
        InvalidSettings: the text is not an address.
    """
    found = _ADDRESS.fullmatch(f":{text}" if default_host is not None and text.isdecimal() else text)
    if found is not None:
        host = found["v6"] or found["name"] or default_host
        port = default_port if found["port"] is None else int(found["port"])
        if host is not None and port is not None and port < 65536:
            return host, port
    raise InvalidSettings(f"{text!r} is not an address: write HOST:PORT, or [IPV6]:PORT")

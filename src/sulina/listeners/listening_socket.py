"""A socket to listen on, bound before a server takes it: so its port is known, and a failure says why."""

import asyncio
import socket


async def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the first address of a host; port 0 is any that is free.

    A name may have several addresses, but all clients are told one port.

    Raises:
        OSError: the address is taken, or does not belong to this machine.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener

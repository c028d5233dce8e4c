"""Command `sulina serve`: run a node in the foreground, from its settings to its graceful stop."""

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from sulina.addresses import address_text
from sulina.cli import terminal
from sulina.cli.flags.settings import ALONE, NOTHING_GIVEN, ClusterFlags, NodeFlags
from sulina.config import Settings
from sulina.config import load as load_settings
from sulina.errors import LogLocked, NotServing, SulinaError

if TYPE_CHECKING:
    from sulina.node import Node

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EACCES)


def serve(
    *,
    node: NodeFlags = NOTHING_GIVEN,
    cluster: ClusterFlags = ALONE,
    config: str | None = None,
    json: bool = False,
) -> None:
    """Start a node, and serve until SIGTERM or Ctrl-C.

    Parameters
    ----------
    config
        TOML file with settings. Default: ./sulina.toml if it exists.
    json
        Print one line of JSON (url, data, broker_id, pid) when the node is ready.
    """
    flags = node.given() | cluster.given()
    settings = load_settings(flags, file=config, log_format="console" if sys.stderr.isatty() else "json")
    from sulina.node import logs

    logs.configure(settings.log_format, settings.log_level)
    _run_loop(settings, as_json=json)


def _run_loop(settings: Settings, *, as_json: bool) -> None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(_serve(settings, as_json=as_json))
    else:
        uvloop.run(_serve(settings, as_json=as_json))


async def _serve(settings: Settings, *, as_json: bool) -> None:
    from sulina.node import Node

    stopping = asyncio.Event()

    def stop(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)  # a second signal does not wait; acknowledged records are durable
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        node = await Node.start(settings)
    except OSError as error:
        raise _start_error(error, settings) from error
    except LogLocked as error:
        error.add_note("another node uses this directory: stop it, or choose another directory with --data")
        raise
    try:
        _tell_ready(node, settings, as_json=as_json)
        node.warming.add_done_callback(lambda _: _collect_less())
        await stopping.wait()
    finally:
        await node.stop()


def _collect_less() -> None:
    """Run the garbage collector less often: requests leave few cycles, and it took a tenth of the time of a publish."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def _tell_ready(node: "Node", settings: Settings, *, as_json: bool) -> None:
    """Print one line on standard output: the node answers from now on."""
    if as_json:
        terminal.print_json(
            {"url": node.url, "data": settings.data, "broker_id": settings.broker_id, "pid": os.getpid()}
        )
    else:
        member = f"  broker {settings.broker_id} in {settings.metadata}" if settings.etcd is not None else ""
        terminal.write(f"sulina is ready: {node.url}  data {settings.data}{member}\n".encode())
        sys.stdout.flush()


def _start_error(error: OSError, settings: Settings) -> SulinaError:
    """Return the error for what the operating system refused, with what to do."""
    address = address_text(settings.http_host, settings.http_port)
    if error.errno == errno.EADDRINUSE:
        failure = NotServing(reason=f"{address} is in use by another process")
        failure.add_note("stop that process, or choose another address with --http (port 0 picks a free port)")
    elif isinstance(error, socket.gaierror) or (error.errno in _NOT_OURS and error.filename is None):
        failure = NotServing(reason=f"cannot listen on {address}: {error.strerror}")
        failure.add_note("choose another address with --http")
    elif (
        isinstance(error, PermissionError | FileExistsError | NotADirectoryError | FileNotFoundError) or error.filename
    ):
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        why = "it is, or is below, a file" if is_file else error.strerror or error
        failure = NotServing(reason=f"cannot write to the data directory {settings.data}: {why}")
        failure.add_note("choose another directory with --data")
    else:
        failure = NotServing(reason=str(error))
    return failure

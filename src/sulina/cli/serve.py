"""Command `sulina serve`: run a node in the foreground, from its settings to its graceful stop."""

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sulina.cli import terminal
from sulina.cli.flags.cluster import ALONE, ClusterFlags
from sulina.config import (
    DEFAULT_BROKER_ID,
    DEFAULT_DATA,
    DEFAULT_HTTP,
    DEFAULT_METRICS_EVENT_SECONDS,
    DEFAULT_SUBSCRIBER_TIMEOUT_SECONDS,
    DEFAULT_SUSPENDED_TTL_SECONDS,
    LogFormat,
    LogLevel,
    Settings,
    address_text,
)
from sulina.config import load as load_settings
from sulina.errors import LogLocked, NotServing, SulinaError

if TYPE_CHECKING:
    from sulina.node import Node

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EACCES)


def serve(
    *,
    data: Annotated[str | None, Parameter(show_default=DEFAULT_DATA)] = None,
    http: Annotated[str | None, Parameter(show_default=DEFAULT_HTTP)] = None,
    broker_id: Annotated[str | None, Parameter(show_default=DEFAULT_BROKER_ID)] = None,
    subscriber_timeout_seconds: Annotated[
        float | None, Parameter(show_default=f"{DEFAULT_SUBSCRIBER_TIMEOUT_SECONDS:g}")
    ] = None,
    suspended_ttl_seconds: Annotated[float | None, Parameter(show_default=f"{DEFAULT_SUSPENDED_TTL_SECONDS:g}")] = None,
    compress_checkpoints: bool | None = None,
    metrics_event_seconds: Annotated[float | None, Parameter(show_default=f"{DEFAULT_METRICS_EVENT_SECONDS:g}")] = None,
    cluster: ClusterFlags = ALONE,
    config: str | None = None,
    insecure: bool | None = None,
    log_format: LogFormat | None = None,
    log_level: LogLevel | None = None,
    json: bool = False,
) -> None:
    """Start a node, and serve until SIGTERM or Ctrl-C.

    Parameters
    ----------
    data
        Directory for all stored data; created if it does not exist.
    http
        HOST:PORT to listen on for HTTP and WebSocket; port 0 picks a free port.
    broker_id
        ID of this node. In a cluster it must be unique, and must stay the same after a restart.
    subscriber_timeout_seconds
        Suspend a subscriber that does not ack a batch within this time.
    suspended_ttl_seconds
        Remove a suspended subscriber that does not recover within this time.
    compress_checkpoints
        Compress checkpoints of logs with gzip: smaller files, slightly more CPU time.
    metrics_event_seconds
        Interval of metrics events, sent only while a client listens to events.
    config
        TOML file with settings. Default: ./sulina.toml if it exists.
    insecure
        Allow an address that other machines can reach, although the node has no TLS and no authentication yet.
    log_format
        Log format on standard error. Default: `console` in a terminal, `json` otherwise.
    log_level
        Lowest log level to emit.
    json
        Print one line of JSON (url, data, broker_id, pid) when the node is ready.
    """
    flags = {
        "data": data,
        "http": http,
        "broker_id": broker_id,
        "subscriber_timeout_seconds": subscriber_timeout_seconds,
        "suspended_ttl_seconds": suspended_ttl_seconds,
        "compress_checkpoints": compress_checkpoints,
        "metrics_event_seconds": metrics_event_seconds,
        "insecure": insecure,
        "log_format": log_format,
        "log_level": log_level,
        **asdict(cluster),
    }
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
        failure = NotServing(reason=f"cannot write to the data directory {settings.data}: {error.strerror or error}")
        failure.add_note("choose another directory with --data")
    else:
        failure = NotServing(reason=str(error))
    return failure

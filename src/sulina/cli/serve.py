"""`sulina serve`: a node in the foreground, from its settings to its graceful end."""

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

from sulina.addresses import address_text
from sulina.cli import terminal
from sulina.cli.cluster_flags import ALONE, ClusterFlags
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
        The directory for everything that is stored; made if there is none.
    http
        HOST:PORT for HTTP and WebSocket; port 0 is any that is free.
    broker_id
        The name of this node; in a cluster no other broker has it, and it keeps it.
    subscriber_timeout_seconds
        How long a subscriber may take to ack a batch; then it is suspended.
    suspended_ttl_seconds
        A subscriber without a success for so long is removed.
    compress_checkpoints
        Write the checkpoints of logs as gzip: smaller files, a little more work.
    metrics_event_seconds
        How often changed metrics are told on the event stream, while anybody listens.
    config
        A TOML file; without it ./sulina.toml, if there is one.
    insecure
        Listen where other machines can reach the node, although it has neither TLS nor authentication yet.
    log_format
        Of the log on standard error; without it `console` in a terminal, else `json`.
    log_level
        The least that is logged.
    json
        Say that the node is ready as one line of JSON: url, data, broker_id, pid.
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
            os._exit(128 + number)  # whoever asks twice does not want to wait; what is acked is durable
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        node = await Node.start(settings)
    except OSError as error:
        raise _start_error(error, settings) from error
    except LogLocked as error:
        error.add_note("another node uses this data: end it, or choose another directory with --data")
        raise
    try:
        _tell_ready(node, settings, as_json=as_json)
        node.warming.add_done_callback(lambda _: _collect_less())
        await stopping.wait()
    finally:
        await node.stop()


def _collect_less() -> None:
    """What was loaded stays, and requests leave next to no cycles: looking for them cost a tenth of every publish."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def _tell_ready(node: "Node", settings: Settings, *, as_json: bool) -> None:
    """One line on standard output: the node answers from now on."""
    if as_json:
        terminal.print_json(
            {"url": node.url, "data": settings.data, "broker_id": settings.broker_id, "pid": os.getpid()}
        )
    else:
        member = f"  broker {settings.broker_id} of {settings.metadata}" if settings.etcd is not None else ""
        terminal.write(f"sulina is ready: {node.url}  data {settings.data}{member}\n".encode())
        sys.stdout.flush()


def _start_error(error: OSError, settings: Settings) -> SulinaError:
    """What the operating system refused, in words, with what to do."""
    address = address_text(settings.http_host, settings.http_port)
    if error.errno == errno.EADDRINUSE:
        failure = NotServing(reason=f"{address} is in use by another process")
        failure.add_note("end it, or choose another with --http; port 0 takes any that is free")
    elif isinstance(error, socket.gaierror) or (error.errno in _NOT_OURS and error.filename is None):
        failure = NotServing(reason=f"cannot listen on {address}: {error.strerror}")
        failure.add_note("choose another address with --http")
    elif (
        isinstance(error, PermissionError | FileExistsError | NotADirectoryError | FileNotFoundError) or error.filename
    ):
        failure = NotServing(reason=f"cannot write the data directory {settings.data}: {error.strerror or error}")
        failure.add_note("choose another with --data")
    else:
        failure = NotServing(reason=str(error))
    return failure

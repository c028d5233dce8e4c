"""Logs as events with fields, one a line on standard error: `topic_unloaded topic=/default/orders offset=41`.

Modules call `structlog.get_logger()`. Messages of libraries, through `logging`, come out alike.
A log that nobody reads any more stops nothing.
"""

import logging
import sys
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from sulina.config import LogFormat, LogLevel

_QUIET = ("uvicorn", "websockets")  # a line for each request is what metrics and traces are for


def configure(log_format: LogFormat, log_level: LogLevel, *, stream: TextIO | None = None) -> None:
    """Set up logging, once, when the process starts."""
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[log_level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *_rendered(log_format, stream),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _Lines(stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_ToEvents()], level=max(level, logging.INFO), force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def configure_for_a_library() -> None:
    """Set up logging within another program: events go to `logging`, under `sulina`; nothing is printed unasked."""
    if structlog.is_configured():
        return
    logging.getLogger("sulina").addHandler(logging.NullHandler())
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _rendered(log_format: LogFormat, stream: TextIO) -> list[Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, _as_json]
    return [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)]


def _as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    known = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return msgspec.json.encode({**known, **event}, enc_hook=str).decode()


class _Lines:
    """Where structlog's lines end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        """Log one event."""
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return  # the reader is gone, or the stream is closed

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class _ToEvents(logging.Handler):
    """What comes through `logging`, as events."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        structlog.get_logger().log(record.levelno, record.getMessage(), **fields)

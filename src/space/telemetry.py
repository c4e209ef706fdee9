"""Logging: events with fields, JSON on standard output, readable on a terminal.

An event's name is noun.past-participle (`sandbox.created`).  Guest output, credentials and request bodies are never
logged.  Context (request, operation, sandbox) is bound by `structlog.contextvars`.
"""

import logging
import sys
from typing import TextIO

import structlog


def configure_logging(*, log_format: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Set up structlog for the process.  `log_format` is `json`, `pretty` or `auto` (pretty on a terminal)."""
    out = stream if stream is not None else sys.stdout
    is_pretty = log_format == "pretty" or (log_format == "auto" and out.isatty())
    renderer: structlog.typing.Processor = (
        # Not the default traceback: it would show local variables, tokens among them.
        structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if is_pretty
        else structlog.processors.JSONRenderer()
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not is_pretty:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_level(level)),
        logger_factory=structlog.PrintLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=out, format="%(name)s: %(message)s", force=True)


def _level(name: str) -> int:
    number = logging.getLevelNamesMapping().get(name.upper())
    if number is None:
        raise ValueError(f"unknown log level {name!r}; use debug, info, warning or error")
    return number

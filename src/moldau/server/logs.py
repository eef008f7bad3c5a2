"""Sets up logging to stderr, as text or as JSON."""

import json
import logging
import math
import sys
import time
from types import TracebackType
from typing import Final

from moldau.model.log_levels import LogLevels, component_of, set_loggers
from moldau.server.config.schema import LogFormat, LoggingConfig

RESERVED_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
"""Names that a field of a line cannot have."""
_DEPTH_MAX: Final = 4
"""Of values in fields. What is nested more deeply is written as text."""

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
TEXT_LINE: Final = "%(asctime)s %(levelname)-7s %(component)s: %(message)s"
_NODE_LINE: Final = "%(asctime)s %(levelname)-7s [process {}] %(component)s: %(message)s"


def _utc(record: logging.LogRecord) -> str:
    """With milliseconds, as everything reads it that collects logs."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, component, event, message, and the fields that the
    call gave."""

    def __init__(self, process: int | None = None) -> None:
        """`process`: the number of this one in its node."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "component": component_of(record.name),
        }
        if self._process is not None:
            entry["node_process"] = self._process
        event = record.__dict__.get("event")
        if event is not None:
            entry["event"] = str(event)
        entry["message"] = _message(record)
        entry["logger"] = record.name
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        for key, value in record.__dict__.items():
            if key not in RESERVED_FIELDS:
                entry.setdefault(key, _json_value(value, _DEPTH_MAX))
        # ASCII only: no character in it can end a line or move a cursor.
        return json.dumps(entry, allow_nan=False)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        # A line whose arguments do not fit is better than none.
        return f"{record.msg} {record.args!r}"


def _json_value(value: object, depth: int) -> object:
    """What JSON has a form for, and text for anything else."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth and isinstance(value, dict):
        return {str(key): _json_value(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_json_value(item, depth - 1) for item in value]
    return str(value)


class TextFormatter(logging.Formatter):
    """One line per message, and a traceback after it, indented. Clients choose names and reasons
    that are logged: none of them can look like another line, or move the cursor of a terminal.

    The event, if there is one, is in brackets at the end.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.__dict__["component"] = component_of(record.name)
        return super().format(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _utc(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = _printable(record.message)
        event = record.__dict__.get("event")
        line = super().formatMessage(record)
        return line if event is None else f"{line} [{event}]"

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    """The text of an error may have line ends, too."""
    return "\n".join(f"  {_printable(line)}" for line in text.split("\n"))


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def set_up_logging(config: LoggingConfig, process: int | None = None) -> LogLevels:
    """Returns the levels, which can be changed from then on. `process`: the number of this one in
    its node, which writes to the same stream as the others."""
    handler = logging.StreamHandler(sys.stderr)
    if config.format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter(process))
    else:
        line = TEXT_LINE if process is None else _NODE_LINE.format(process)
        handler.setFormatter(TextFormatter(line))
    logging.getLogger().handlers[:] = [handler]
    # Else Python writes them to stderr by itself, in lines of another form.
    logging.captureWarnings(True)
    return LogLevels(config.level, dict(config.levels or ()), set_loggers)

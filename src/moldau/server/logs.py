"""Sets up logging to stderr, as text or as JSON."""

import json
import logging
import sys

from moldau.server.config.schema import LogFormat, LoggingConfig

_OWN_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in record.__dict__.items():
            if key not in _OWN_ATTRIBUTES:
                entry[key] = value
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """One line per message, and a traceback after it. Clients choose names and reasons that are
    logged: none of them can look like another line, or move the cursor of a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        if not record.message.isprintable():
            record.message = "".join(map(_escaped, record.message))
        return super().formatMessage(record)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def set_up_logging(config: LoggingConfig) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if config.format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())

"""Keeps the audit log in a file of the data directory: JSON lines, in files of bounded size."""

import logging
import os
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from moldau.api.audit import LOGGER_NAME
from moldau.model import log_events as events

FILE_NAME: Final = "audit.log"
FILE_BYTES_MAX: Final = 10 * 1024 * 1024
FILES_MAX: Final = 10
_OWNER_ONLY: Final = 0o600

log = logging.getLogger(__name__)


class _AuditFile(RotatingFileHandler):
    """Made with the first line: a broker without authorisation has none."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _OWNER_ONLY)
        return os.fdopen(descriptor, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A full disk must not stop the broker, but an operator has to know what is missing."""
        log.error(
            "cannot write the audit log: %s; the entry is %s",
            sys.exception(),
            record.getMessage(),
            extra=events.AUDIT_WRITE_FAILED(),
        )


def keep_audit_log(data_dir: Path) -> logging.Handler:
    """Sends audit entries to the file from now on, and to no other log."""
    handler = _AuditFile(
        data_dir / FILE_NAME, maxBytes=FILE_BYTES_MAX, backupCount=FILES_MAX - 1, delay=True
    )
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers[:] = [handler]
    # Whatever level the operator has chosen for other logs.
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return handler

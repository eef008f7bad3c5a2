"""The audit log: who did what from where, allowed or denied, as one JSON object per line.

Denials are always recorded, what was allowed only if it changes more than records and positions.
The rate is bounded, so that a client in a loop cannot fill the disk; the next line that is written
says how many were left out.
"""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from moldau.model.clock import Clock
from moldau.security.acl import Operation, Resource
from moldau.security.principal import Principal

LOGGER_NAME: Final = "moldau.audit"
LINES_PER_SECOND: Final = 50
BURST_LINES: Final = 500
"""A short burst, e.g. a script that creates topics, is recorded in full."""
_NAME_CHARACTERS_MAX: Final = 300
"""Names come from clients, and may be long."""
_ABOUT_CHARACTERS_MAX: Final = 2000


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    time_ms: int
    principal: str
    host: str
    use_case: str
    operation: str
    resource_type: str
    resource: str
    allowed: bool
    about: str = ""
    """What it does, where the resource does not say it: a user, a broker, rules."""
    listener: str = ""
    left_out: int = 0
    """Entries before this one that were not written because there were too many."""


_encode: Final = msgspec.json.Encoder().encode


class _Rate:
    """How many lines may still be written."""

    def __init__(self) -> None:
        self._left = float(BURST_LINES)
        self._filled_at = float("-inf")

    def take(self, now: float) -> bool:
        refilled = self._left + (now - self._filled_at) * LINES_PER_SECOND
        self._left = min(float(BURST_LINES), refilled)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class AuditLog:
    """Writes entries by `write`, which gets one line of JSON without its end."""

    def __init__(self, clock: Clock, write: Callable[[str], None]) -> None:
        self._clock = clock
        self._write = write
        # Each its own: a client without rights must not be able to crowd out what is changed.
        self._rates = {True: _Rate(), False: _Rate()}
        self._left_out = 0

    def record(
        self,
        principal: Principal,
        host: str,
        listener: str,
        use_case: str,
        operation: Operation,
        resource: Resource,
        *,
        is_allowed: bool,
        about: str = "",
    ) -> None:
        if not self._rates[is_allowed].take(self._clock.monotonic()):
            self._left_out += 1
            return
        entry = AuditEntry(
            time_ms=self._clock.wall_ms(),
            principal=str(principal)[:_NAME_CHARACTERS_MAX],
            host=host,
            use_case=use_case,
            operation=operation.name,
            resource_type=resource.type.name,
            resource=resource.name[:_NAME_CHARACTERS_MAX],
            allowed=is_allowed,
            about=about[:_ABOUT_CHARACTERS_MAX],
            listener=listener,
            left_out=self._left_out,
        )
        self._left_out = 0
        self._write(_encode(entry).decode())


def to_logger(line: str) -> None:
    """Writes a line to the logger of audits, whose handlers the operator chooses."""
    logging.getLogger(LOGGER_NAME).info("%s", line)

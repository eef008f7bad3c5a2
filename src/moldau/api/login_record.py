"""Counts logins by mechanism and result, and passes them to the audit log."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from moldau.api.audit import AuditLog
from moldau.security.principal import ANONYMOUS, Principal, user

CERTIFICATE: Final = "certificate"
"""Stands for a mechanism where TLS proved who the client is."""
UNKNOWN: Final = "unknown"
"""The same, of a request that names none that there is."""
SUCCESS: Final = "success"
FAILURE: Final = "failure"
UNCHECKED: Final = "unchecked"
"""Refused before it was looked at: too many failures, or the broker is busy."""


class LoginRecord:
    """Labels are few: mechanisms are those of the broker, whatever clients ask for."""

    def __init__(self, audit: AuditLog | None = None) -> None:
        self._audit = audit
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """By mechanism and result, since the start."""
        return self._counts

    def succeeded(self, mechanism: str, principal: Principal, host: str) -> None:
        self._counts[mechanism, SUCCESS] += 1
        if self._audit is not None:
            self._audit.record_login(principal, host, mechanism)

    def failed(
        self, mechanism: str, name: str | None, host: str, reason: str, result: str = FAILURE
    ) -> None:
        """`name` is what the client claims; None: it came to no name."""
        self._counts[mechanism, result] += 1
        if self._audit is not None:
            claimed = user(name) if name else ANONYMOUS
            self._audit.record_failed_login(claimed, host, mechanism, reason)

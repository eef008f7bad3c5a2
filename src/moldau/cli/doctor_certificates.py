"""Checks of `moldau doctor` on certificates: can they be used, and how long?"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from moldau.cli.check_result import CheckResult, ok, trouble, warning

if TYPE_CHECKING:
    from moldau.server.config.schema import ServerConfig

_SOON = timedelta(days=30)
_RENEW = "replace the file; brokers load it without a restart"


def check_certificates(config: "ServerConfig") -> Iterator[CheckResult]:
    from moldau.server.certificates import certificate_states

    for state in certificate_states(config):
        name = f"certificate {state.file}"
        if state.expires_at is None:
            yield trouble(name, state.problem, state.hint)
            continue
        if state.exposed_key:
            detail = f"other users can read the private key {state.exposed_key}"
            yield warning(name, detail, f"chmod 600 {state.exposed_key}")
        yield _expiry(name, state.expires_at)


def _expiry(name: str, expires_at: datetime) -> CheckResult:
    left = expires_at - datetime.now(UTC)
    when = f"{expires_at:%Y-%m-%d %H:%M} UTC"
    if left <= timedelta(0):
        return trouble(name, f"expired on {when}: clients refuse it", _RENEW)
    detail = f"valid until {when}, for {left.days} more days"
    return warning(name, detail, _RENEW) if left < _SOON else ok(name, detail)

"""Checks of `moldau doctor` on certificates: can they be used, how long, and for these hosts?"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from moldau.cli.check_result import CheckResult, ok, trouble, warning

if TYPE_CHECKING:
    from moldau.server.config.schema import ServerConfig

_DAY = 86_400
_SOON = 30 * _DAY
_RENEW = "replace the file; brokers load it without a restart"


def check_certificates(config: "ServerConfig") -> Iterator[CheckResult]:
    from moldau.server.certificates import Certificates, certificate_states

    for state in certificate_states(config):
        name = f"certificate {state.file}"
        if state.expires_at is None:
            yield trouble(name, state.problem, state.hint)
            continue
        if state.exposed_key:
            detail = f"other users can read the private key {state.exposed_key}"
            yield warning(name, detail, f"chmod 600 {state.exposed_key}")
        yield (
            trouble(name, f"{state.refused}: clients refuse it", _RENEW)
            if state.refused
            else _expiry(name, state.expires_at)
        )
    for found in Certificates(config).name_troubles():
        yield trouble(f"certificate {found.file}", found.detail, found.hint)


def _expiry(name: str, expires_at: float) -> CheckResult:
    left = expires_at - time.time()
    when = datetime.fromtimestamp(expires_at, UTC)
    detail = f"valid until {when:%Y-%m-%d %H:%M} UTC, for {int(left // _DAY)} more days"
    return warning(name, detail, _RENEW) if left < _SOON else ok(name, detail)

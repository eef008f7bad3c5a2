"""Checks of `moldau doctor` on certificates: can they be used, how long, and for these hosts?"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from moldau.cli.check_result import CheckResult, ok, trouble, warning

if TYPE_CHECKING:
    from moldau.net.tls.own_certificate import OwnCertificate
    from moldau.server.config.schema import ServerConfig

_DAY = 86_400
_SOON = 30 * _DAY
_RENEW = "replace the file; brokers load it without a restart"


def check_certificates(config: "ServerConfig") -> Iterator[CheckResult]:
    from moldau.server.certificates import Certificates, certificate_states

    for state in certificate_states(config):
        name = f"certificate {state.file}"
        if state.certificate is None:
            yield trouble(name, state.problem, state.hint)
            continue
        if state.exposed_key:
            detail = f"other users can read the private key {state.exposed_key}"
            yield warning(name, detail, f"chmod 600 {state.exposed_key}")
        yield _dates(name, state.certificate)
    for found in Certificates(config).name_troubles():
        yield trouble(f"certificate {found.file}", found.detail, found.hint)


def _dates(name: str, certificate: "OwnCertificate") -> CheckResult:
    from moldau.net.tls.own_certificate import written

    now = time.time()
    if found := certificate.trouble(now):
        return trouble(name, f"{found}: clients refuse it", _RENEW)
    left = certificate.expires_at - now
    detail = f"valid until {written(certificate.expires_at)}, for {int(left // _DAY)} more days"
    return warning(name, detail, _RENEW) if left < _SOON else ok(name, detail)

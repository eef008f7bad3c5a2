"""What gRPC knows of the client of a call: its address, what it says, and its certificate."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from moldau.net.tls.contexts import PeerCertificate, described

if TYPE_CHECKING:
    from grpc import aio

    Context = aio.ServicerContext[Any, Any]

_AUTHORIZATION: Final = "authorization"
_CERTIFICATE: Final = "x509_pem_cert"


def host_of(context: "Context") -> str:
    """The address of the client; empty if it has none."""
    return _host(context.peer())


@lru_cache(maxsize=1024)
def _host(peer: str) -> str:
    """Of all calls of a connection, the same."""
    scheme, _, rest = unquote(peer).partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return ""
    return rest.rpartition(":")[0].strip("[]")


def authorization_of(context: "Context") -> list[str]:
    """The values of the metadata key of that name."""
    return [
        value if isinstance(value, str) else value.decode("latin-1")
        for name, value in context.invocation_metadata() or ()
        if name == _AUTHORIZATION
    ]


def certificate_of(context: "Context") -> PeerCertificate | None:
    """The certificate that gRPC has verified; None: there is none."""
    found = next(iter(context.auth_context().get(_CERTIFICATE, ())), None)
    return None if found is None else _certificate(found)


@lru_cache(maxsize=1024)
def _certificate(pem: bytes) -> PeerCertificate:
    from cryptography import x509

    return described(x509.load_pem_x509_certificate(pem))

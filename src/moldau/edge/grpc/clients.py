"""The clients of gRPC: by the connections that their calls came through.

gRPC accepts connections itself, and does not say which are open: a connection counts as open while
it has calls, and for as long after the last one as the server lets it be idle.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from moldau.api.connections import ConnectionShown
from moldau.net.traffic import TEXT_CHARS_MAX
from moldau.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from grpc import aio

    Context = aio.ServicerContext[Any, Any]

CLIENTS_MAX: Final = 4096
"""More than the listener's connections, so that none that is open is forgotten."""
IDLE_SECONDS_MAX: Final = 60.0


class GrpcClient:
    """One connection."""

    __slots__ = ("active_at", "calls", "errors", "opened_at", "requests", "software", "user")

    def __init__(self, now: float, software: str) -> None:
        self.opened_at = self.active_at = now
        self.software = software
        self.calls = 0
        """Now."""
        self.requests = 0
        self.errors = 0
        self.user = ""

    def entered(self, principal: Principal) -> None:
        self.user = "" if principal == ANONYMOUS else principal.name


class GrpcClients:
    def __init__(self, now: Callable[[], float], listener: str = "grpc") -> None:
        self._now = now
        self._listener = listener
        self._clients: OrderedDict[str, GrpcClient] = OrderedDict()
        """Who was active last comes last."""

    def began(self, context: "Context") -> GrpcClient:
        """A call begins."""
        peer, now = context.peer(), self._now()
        client = self._clients.get(peer)
        if client is None or self._is_gone(client, now):
            client = self._clients[peer] = GrpcClient(now, _agent_of(context))
            self._forget(now)
        self._clients.move_to_end(peer)
        client.calls += 1
        client.requests += 1
        client.active_at = now
        return client

    def ended(self, client: GrpcClient) -> None:
        client.calls -= 1
        client.active_at = self._now()

    def _forget(self, now: float) -> None:
        """Those that were active longest ago, and are closed by now."""
        while self._clients:
            peer, client = next(iter(self._clients.items()))
            if len(self._clients) <= CLIENTS_MAX and not self._is_gone(client, now):
                return
            if client.calls:
                # Long calls: they are open, and seen again later.
                self._clients.move_to_end(peer)
                return
            del self._clients[peer]

    def _is_gone(self, client: GrpcClient, now: float) -> bool:
        return not client.calls and now - client.active_at > IDLE_SECONDS_MAX

    def open_connections(self, most: int, wall_ms: int) -> tuple[int, list[ConnectionShown]]:
        now = self._now()
        found = [
            (peer, client)
            for peer, client in self._clients.items()
            if not self._is_gone(client, now)
        ]
        found.sort(key=lambda one: one[1].opened_at)
        shown = [self._show(peer, client, now, wall_ms) for peer, client in found[:most]]
        return len(found), shown

    def _show(self, peer: str, client: GrpcClient, now: float, wall_ms: int) -> ConnectionShown:
        software, _, version = client.software.partition(" ")[0].partition("/")
        return ConnectionShown(
            client_id=None,
            software=software,
            version=version,
            user=client.user,
            address=unquote(peer).partition(":")[2],
            listener=self._listener,
            protocol="grpc",
            opened_at_ms=wall_ms - int((now - client.opened_at) * 1000),
            requests=client.requests,
            bytes_in=None,
            bytes_out=None,
            throttled_ms=0,
            errors=client.errors,
            idle_ms=0 if client.calls else max(0, int((now - client.active_at) * 1000)),
        )


def _agent_of(context: "Context") -> str:
    for name, value in context.invocation_metadata() or ():
        if name == "user-agent":
            text = value if isinstance(value, str) else value.decode("latin-1")
            return text[:TEXT_CHARS_MAX]
    return ""

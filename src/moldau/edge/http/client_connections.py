"""What a broker shows of the connections of HTTP clients: counted by the layers of a request."""

import re
from typing import Final

from starlette.types import Message, Scope

from moldau.api.connections import ConnectionShown
from moldau.net.traffic import TEXT_CHARS_MAX

CONNECTION: Final = "moldau.connection"
"""In the state of a connection: its `ConnectionTraffic`."""
_PRODUCT: Final = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+)/([^\s()]+)")
_BROWSERS: Final = ("Firefox", "Edg", "OPR", "HeadlessChrome", "Chrome", "Safari")
"""Browsers name others first, in this order of trust."""


class ConnectionTraffic:
    """What one client did, since its connection was opened."""

    __slots__ = (
        "active_at",
        "address",
        "agent",
        "bytes_in",
        "bytes_out",
        "errors",
        "opened_at",
        "requests",
        "user",
    )

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.opened_at = self.active_at = now
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.errors = 0
        self.agent = ""
        """Its User-Agent."""
        self.user = ""

    def asked(self, scope: Scope) -> None:
        self.requests += 1
        if not self.agent:
            for name, value in scope["headers"]:
                if name == b"user-agent":
                    self.agent = value[:TEXT_CHARS_MAX].decode("latin-1")

    def sent(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # As on the wire, but for the line with the status.
            self.bytes_out += sum(len(name) + len(value) + 4 for name, value in message["headers"])
        else:
            self.bytes_out += len(message.get("body", b""))

    def answered(self, status: int) -> None:
        self.errors += status >= 400

    def shown(self, listener: str, now: float, wall_ms: int) -> ConnectionShown:
        software, version = software_of(self.agent)
        return ConnectionShown(
            client_id=None,
            software=software,
            version=version,
            user=self.user,
            address=self.address,
            listener=listener,
            protocol="http",
            opened_at_ms=wall_ms - int((now - self.opened_at) * 1000),
            requests=self.requests,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            # A client over its quota is refused, and not held up.
            throttled_ms=0,
            errors=self.errors,
            idle_ms=max(0, int((now - self.active_at) * 1000)),
        )


def traffic_of(scope: Scope) -> ConnectionTraffic | None:
    found: ConnectionTraffic | None = scope.get("state", {}).get(CONNECTION)
    return found


def software_of(agent: str) -> tuple[str, str]:
    """Name and version in a User-Agent."""
    products = dict(_PRODUCT.findall(agent))
    for browser in _BROWSERS:
        if "Mozilla" in products and browser in products:
            return browser, products[browser]
    return next(iter(products.items()), (agent, ""))

"""Checks which host a request was sent to.

A web page whose name suddenly resolves to this machine (DNS rebinding) is the same origin as the
broker in the eyes of its browser, which then shows it every response. But the browser still sends
the page's name in Host. So a request is served only under names that belong to the broker.

The port is not compared: it may be forwarded, and a page cannot choose a foreign name with it.
"""

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple

from starlette.responses import Response
from starlette.types import Scope

from moldau.edge.http.responses import respond_error
from moldau.model.errors import ErrorCode

ANY: Final = "*"
_MISDIRECTED: Final = 421
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{0,5}))?")
_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_-]+)*")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_UNUSABLE: Final = frozenset({"0.0.0.0", "::"})
"""Bound to all addresses: not a name that a client may use."""


class Authority(NamedTuple):
    """Where a request was sent: `host` in lower case, addresses in their usual form."""

    host: str
    port: int | None


def parse_authority(text: str) -> Authority | None:
    """Reads HOST, HOST:PORT or [IPv6]:PORT; None if it is none of these."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        return None
    host = canonical_host(found[1])
    port = int(found[2]) if found[2] else None
    if host is None or (port is not None and not 0 < port <= 65535):
        return None
    return Authority(host, port)


def canonical_host(text: str) -> str | None:
    """One spelling for each host; an IPv4 address in an IPv6 one counts as the former."""
    if text.startswith("["):
        return _canonical_v6(text[1:-1]) if text.endswith("]") else None
    try:
        return str(IPv4Address(text))
    except AddressValueError:
        pass
    name = text.lower().removesuffix(".")
    return name if _NAME.fullmatch(name) else None


def _canonical_v6(text: str) -> str | None:
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return None
    if address.scope_id is not None:
        return None
    return str(address.ipv4_mapped or address)


def is_loopback(host: str) -> bool:
    """Whether `host`, in its usual form, always means this machine."""
    if host == "localhost":
        return True
    try:
        return IPv4Address(host).is_loopback
    except AddressValueError:
        return host == "::1"


class Hosts:
    """The names of the broker: loopback, the address of the connection, and those given."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: hosts without port; `*.domain` stands for all names below it, `*` for all."""
        given = {_bracketed(name) for name in names}
        self._any = ANY in given
        self._suffixes = tuple(
            name[1:].lower().removesuffix(".") for name in given if name.startswith("*.")
        )
        known = {canonical_host(name) for name in given if not name.startswith(ANY)}
        self._names = {name for name in known if name is not None} - _UNUSABLE

    def knows(self, host: str, local_address: str | None = None) -> bool:
        """Whether `host`, in its usual form, is this broker."""
        if self._any or host in self._names or is_loopback(host):
            return True
        if local_address is not None and host == canonical_host(_bracketed(local_address)):
            return True
        return bool(self._suffixes) and host.endswith(self._suffixes)

    def refusal(self, scope: Scope) -> Response | None:
        """The response to a request that was not sent to this broker."""
        sent_to = [value for name, value in scope["headers"] if name == b"host"]
        if len(sent_to) != 1:
            return _bad_request("The request must have exactly one Host header")
        absolute = _ABSOLUTE.match(scope.get("raw_path", b""))
        if absolute is not None:
            sent_to.append(absolute[1])
        local = scope.get("server")
        for raw in sent_to:
            authority = parse_authority(raw.decode("latin-1"))
            if authority is None:
                return _bad_request("The host of the request is not a valid HOST or HOST:PORT")
            if not self.knows(authority.host, local[0] if local else None):
                return _misdirected(authority.host)
        return None


def with_origin_form(scope: Scope) -> Scope:
    """The same request with a path, if its target was a whole URL, as proxies send it."""
    raw_path = scope.get("raw_path", b"")
    absolute = _ABSOLUTE.match(raw_path)
    if absolute is None:
        return scope
    decoded: str = scope["path"]
    # The authority has passed the check, so it is as long decoded as it was encoded.
    return {
        **scope,
        "raw_path": raw_path[absolute.end() :] or b"/",
        "path": decoded[absolute.end() :] or "/",
    }


def _bracketed(host: str) -> str:
    """As in a URL: settings and sockets give IPv6 addresses without brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _bad_request(words: str) -> Response:
    return respond_error(
        400,
        ErrorCode.INVALID_REQUEST,
        words,
        hint="send the broker's address as Host, for example Host: localhost:8080",
    )


def _misdirected(host: str) -> Response:
    return respond_error(
        _MISDIRECTED,
        ErrorCode.INVALID_REQUEST,
        f"This broker is not known as '{host}'",
        hint="use localhost or the advertised address, or add the name to the broker's setting "
        "http.hosts",
    )

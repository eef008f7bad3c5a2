"""Parses truth values, choices and addresses."""

from enum import StrEnum

from moldau.model.log_levels import COMPONENTS, ComponentLevels, LogLevel
from moldau.model.topology import Endpoint
from moldau.server.config.keys import nearest
from moldau.server.config.schema import LOOPBACK, PROCESSES_MAX, Processes

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


class BadValue(ValueError):
    """An invalid value; the message says what is expected."""


def parse_bool(raw: object) -> bool:
    """Raises BadValue."""
    text = str(raw).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise BadValue("must be true or false")


def parse_choice(choices: type[StrEnum], raw: object) -> StrEnum:
    """Raises BadValue."""
    text = str(raw).strip().lower()
    try:
        return choices(text)
    except ValueError:
        names = [choice.value for choice in choices]
        guess = nearest(text, names)
        meant = f"; did you mean {guess}?" if guess else ""
        raise BadValue(f"must be one of {', '.join(names)}{meant}") from None


def parse_component_levels(raw: object) -> ComponentLevels:
    """COMPONENT=LEVEL, separated by commas."""
    found: dict[str, LogLevel] = {}
    for term in filter(None, (term.strip() for term in str(raw).split(","))):
        name, equals, level = (part.strip().lower() for part in term.partition("="))
        if not equals:
            raise BadValue(f"must be COMPONENT=LEVEL, separated by commas; {term} has no =")
        if name not in COMPONENTS:
            guess = nearest(name, COMPONENTS)
            meant = f"; did you mean {guess}?" if guess else ""
            names = ", ".join(COMPONENTS)
            raise BadValue(f"has no component {name}: the components are {names}{meant}")
        if name in found:
            raise BadValue(f"names {name} twice")
        found[name] = LogLevel(parse_choice(LogLevel, level))
    return ComponentLevels(found.items())


def parse_processes(raw: object) -> Processes:
    """A number from 1, or auto. Raises BadValue."""
    text = str(raw).strip().lower()
    if text == "auto":
        return Processes(0)
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= PROCESSES_MAX:
        return Processes(text)
    raise BadValue(f"must be auto, or a number from 1 to {PROCESSES_MAX}")


def parse_address(raw: object) -> Endpoint:
    """HOST:PORT, [IPV6]:PORT, or a port alone (then on loopback)."""
    text = str(raw).strip()
    host, colon, port_text = text.rpartition(":")
    if not colon:
        host, port_text = "", text
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadValue("must be HOST:PORT, with an IPv6 address in brackets: [::1]:9092")
    if not (port_text.isascii() and port_text.isdigit()):
        raise BadValue("must be an address: HOST:PORT")
    port = int(port_text)
    if port > 65535:
        raise BadValue("must have a port of at most 65535")
    if any(character.isspace() or character in "/@" for character in host):
        raise BadValue("must be an address: HOST:PORT, without a scheme or a path")
    return Endpoint(host or LOOPBACK, port)

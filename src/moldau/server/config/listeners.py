"""Reads the setting `listeners`, and makes listeners of the settings of the sections."""

import json
import re

import msgspec

from moldau.server.config.keys import KEYS, nearest
from moldau.server.config.scalars import BadValue, parse_address, parse_bool, parse_choice
from moldau.server.config.schema import ServerConfig
from moldau.server.config.security_schema import (
    LISTENER_FIELDS,
    SASL_MECHANISMS,
    Authentication,
    ListenerConfig,
    ListenerProtocol,
    Listeners,
    ListenerSecurity,
)

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,62}")
_LISTENERS_MAX = 32
SECTIONS = {
    ListenerProtocol.KAFKA: "kafka",
    ListenerProtocol.PEERS: "raft",
    ListenerProtocol.GRPC: "grpc",
    ListenerProtocol.HTTP: "http",
}
"""The section with the single address of a protocol."""
_OTHER_NAMES = {"addr": "address", "sasl_mechanisms": "sasl"}
"""What a setting of a section is called in a listener, where that differs."""


def _section_settings(section: str) -> dict[str, str]:
    """The settings of a section that describe its listener, with their names in a listener."""
    fields = [key.field for key in KEYS.values() if key.section == section]
    named = {field: _OTHER_NAMES.get(field, field) for field in fields}
    return {field: name for field, name in named.items() if name in LISTENER_FIELDS}


SECTION_SETTINGS = {section: _section_settings(section) for section in SECTIONS.values()}


def section_setting(name: str) -> str | None:
    """The setting that is meant by a section with a key of a listener: kafka.sasl."""
    section, _, field = name.rpartition(".")
    found = [key for key, other in SECTION_SETTINGS.get(section, {}).items() if other == field]
    return f"{section}.{found[0]}" if found else None


def parse_listeners(raw: object) -> Listeners:
    """From a list of a file, or JSON in a variable. Raises BadValue."""
    if isinstance(raw, Listeners):
        return raw
    if isinstance(raw, str):
        try:
            raw = json.loads(raw or "[]")
        except (json.JSONDecodeError, RecursionError):
            raise BadValue("must be a list of listeners, as JSON") from None
    if raw is None:
        return Listeners()
    if not isinstance(raw, list):
        raise BadValue("must be a list of listeners, each with name, protocol and address")
    if len(raw) > _LISTENERS_MAX:
        raise BadValue(f"must have at most {_LISTENERS_MAX} listeners")
    return Listeners(_parse_listener(number, entry) for number, entry in enumerate(raw, 1))


def _parse_listener(number: int, entry: object) -> ListenerConfig:
    if not isinstance(entry, dict):
        raise BadValue(f"must have keys and values in listener {number}")
    name = str(entry.get("name") or "")
    if not _NAME.fullmatch(name):
        raise BadValue(f"must have a name of letters, digits, - and _ in listener {number}")
    for field in entry:
        if field not in LISTENER_FIELDS:
            guess = _OTHER_NAMES.get(str(field)) or nearest(str(field), LISTENER_FIELDS)
            meant = f"; did you mean {guess}?" if guess else f" ({', '.join(LISTENER_FIELDS)})"
            raise BadValue(f"has the unknown key {field} in listener {name}{meant}")
    for field in ("protocol", "address"):
        if entry.get(field) is None:
            raise BadValue(f"must have {field} in listener {name}")

    def parsed(field: str, value: object) -> object:
        try:
            return _parse_field(field, value)
        except BadValue as error:
            raise BadValue(f"has {field} = {value!r} in listener {name}, which {error}") from None

    fields = {
        field: parsed(field, value)
        for field, value in entry.items()
        if value is not None and field != "name"
    }
    return msgspec.convert({**fields, "name": name, "setting": f"listeners.{name}"}, ListenerConfig)


def _parse_field(field: str, value: object) -> object:
    if field in ("address", "advertised"):
        return parse_address(value)
    if field == "protocol":
        return parse_choice(ListenerProtocol, value)
    if field == "security":
        return parse_choice(ListenerSecurity, value)
    if field == "authentication":
        return parse_choice(Authentication, value)
    if field == "read_only":
        return parse_bool(value)
    if field == "sasl":
        return parse_mechanisms(value)
    if not isinstance(value, str) or not value.strip():
        raise BadValue("must be the path of a file")
    return value


def parse_mechanisms(value: object) -> tuple[str, ...]:
    """SASL mechanisms: a list, or a text with commas. Raises BadValue."""
    names = value if isinstance(value, list) else str(value).split(",")
    found = tuple(str(name).strip().upper() for name in names if str(name).strip())
    for name in found:
        if name not in SASL_MECHANISMS:
            raise BadValue(f"must be of {', '.join(SASL_MECHANISMS)}; {name} is not supported")
    if len(set(found)) != len(found):
        raise BadValue("must name each mechanism one time only")
    return found


def split_files(text: str) -> list[str]:
    """The files of a setting that may have several."""
    return [one.strip() for one in text.split(",") if one.strip()]


def listeners_of(config: ServerConfig) -> tuple[ListenerConfig, ...]:
    """All listeners of a broker. A protocol in `listeners` replaces the address of its section."""
    named = {listener.protocol for listener in config.listeners}
    sections = [_of_section(config, protocol) for protocol in SECTIONS if protocol not in named]
    return (*[one for one in sections if one is not None], *config.listeners)


def listeners_for(config: ServerConfig, protocol: ListenerProtocol) -> tuple[ListenerConfig, ...]:
    return tuple(one for one in listeners_of(config) if one.protocol is protocol)


def _of_section(config: ServerConfig, protocol: ListenerProtocol) -> ListenerConfig | None:
    name = SECTIONS[protocol]
    section = getattr(config, name)
    if section.addr is None:
        return None
    fields = {field: getattr(section, setting) for setting, field in SECTION_SETTINGS[name].items()}
    if "sasl" in fields:
        fields["sasl"] = parse_mechanisms(fields["sasl"] or "")
    return ListenerConfig(name=protocol.value, protocol=protocol, setting=f"{name}.addr", **fields)

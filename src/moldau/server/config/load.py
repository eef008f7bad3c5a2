"""Merges the layers: flags over environment over file over defaults, each value with its source.

All problems are found in one pass and reported together. Only `load_config` reads an environment,
the one passed to it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from moldau.metadata.replica_rules import DEFAULT_REPLICATION_MAX
from moldau.model.errors import ConfigError
from moldau.model.log_levels import ComponentLevels
from moldau.model.topology import Endpoint
from moldau.server.config.files import read_config_file
from moldau.server.config.keys import (
    ALIASES,
    ENV_PREFIX,
    KEYS,
    OTHER_VARIABLES,
    SECTIONS,
    Alias,
    Key,
    nearest,
)
from moldau.server.config.listener_rules import violations
from moldau.server.config.listeners import parse_mechanisms, section_setting
from moldau.server.config.scalars import BadValue, parse_address
from moldau.server.config.schema import ServerConfig
from moldau.server.config.security_schema import Listeners
from moldau.server.config.values import parse_value

# Kubernetes adds the addresses of a service named moldau-… to the environment of every container.
# These variables are not configuration.
_SERVICE_LINK = re.compile(
    r"MOLDAU(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|[0-9a-f]*:[0-9a-f:.]+", re.IGNORECASE)
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/@?#]+", re.ASCII)


class Layer(StrEnum):
    """The source of a value; later layers win."""

    DEFAULT = "default"
    PRESET = "preset"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class Source(Struct, frozen=True, kw_only=True):
    """Which layer set a value, and where exactly."""

    layer: Layer
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.layer} {self.detail}" if self.detail else str(self.layer)


DEFAULT_SOURCE = Source(layer=Layer.DEFAULT)


class Problem(Struct, frozen=True, kw_only=True):
    text: str
    hint: str = ""


class InvalidConfigError(ConfigError):
    """Holds every error in the configuration."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(problem.text for problem in problems))
        self.problems = problems
        self.hint = next((problem.hint for problem in problems if problem.hint), "")


class ResolvedConfig(Struct, frozen=True, kw_only=True):
    """The configuration, and the source of every value by dotted key."""

    config: ServerConfig
    sources: Mapping[str, Source]

    def value(self, name: str) -> object:
        key = KEYS[name]
        holder = getattr(self.config, key.section) if key.section else self.config
        return getattr(holder, key.field)


class _Entry(NamedTuple):
    name: str
    """As written: a key, or a variable."""
    key: str
    value: object
    source: Source


def load_config(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: str | None = None,
    *,
    preset: Mapping[str, object] | None = None,
    option_names: Mapping[str, str] | None = None,
) -> ResolvedConfig:
    """Merge and check the layers.

    `flags` are dotted keys with their values; None means that a flag was not given. `preset`
    changes defaults (`moldau dev`). `option_names` are the names of flags on the command line,
    where they are not just the key with dashes. Raises InvalidConfigError.
    """
    file = file or environ.get("MOLDAU_CONFIG") or None
    problems: list[Problem] = []
    layers = [
        [
            _Entry(key, key, value, Source(layer=Layer.PRESET, detail="moldau dev"))
            for key, value in (preset or {}).items()
        ],
        _file_entries(file, problems) if file else [],
        _environ_entries(environ.items(), _environ_source, problems),
        _flag_entries(flags, option_names or {}),
    ]
    values: dict[str, object] = {name: key.default for name, key in KEYS.items()}
    sources: dict[str, Source] = dict.fromkeys(KEYS, DEFAULT_SOURCE)
    for entries in layers:
        _apply_layer(entries, values, sources, problems)
    if problems:
        raise InvalidConfigError(problems)
    config = _build(values)
    _check_together(values, sources, problems)
    _check_listeners(config, values, sources, problems)
    if problems:
        raise InvalidConfigError(problems)
    return ResolvedConfig(config=config, sources=sources)


def _flag_entries(flags: Mapping[str, object], names: Mapping[str, str]) -> list[_Entry]:
    entries = []
    for key, value in flags.items():
        if value is None:
            continue
        option = names.get(key) or "--" + key.replace(".", "-").replace("_", "-")
        entries.append(_Entry(key, key, value, Source(layer=Layer.FLAG, detail=option)))
    return entries


def _file_entries(path: str, problems: list[Problem]) -> list[_Entry]:
    found = read_config_file(path)

    def source(line: int) -> Source:
        return Source(layer=Layer.FILE, detail=f"{path}:{line}" if line else path)

    if path.lower().endswith(".env"):
        lines = {entry.key: entry.line for entry in found}
        variables = [(entry.key, str(entry.value)) for entry in found]
        return _environ_entries(variables, lambda name: source(lines[name]), problems)
    return [_Entry(entry.key, entry.key, entry.value, source(entry.line)) for entry in found]


def _environ_source(name: str) -> Source:
    return Source(layer=Layer.ENVIRONMENT, detail=name)


def _environ_entries(
    variables: Iterable[tuple[str, str]],
    source_of: Callable[[str], Source],
    problems: list[Problem],
) -> list[_Entry]:
    entries: list[_Entry] = []
    for name, value in variables:
        if not name.startswith(ENV_PREFIX) or name in OTHER_VARIABLES:
            continue
        if _SERVICE_LINK.fullmatch(name) or _SERVICE_LINK_VALUE.match(value):
            continue
        key = name[len(ENV_PREFIX) :].replace("__", ".").lower()
        if key in KEYS or key in ALIASES:
            entries.append(_Entry(name, key, value, source_of(name)))
            continue
        known = [known_key.variable for known_key in KEYS.values()] + list(OTHER_VARIABLES)
        meant = section_setting(key)
        guess = KEYS[meant].variable if meant else nearest(name, known)
        problems.append(
            Problem(
                text=f"unknown variable {name} ({source_of(name)})",
                hint=f"did you mean {guess}?" if guess else _LIST_HINT,
            )
        )
    return entries


_LIST_HINT = "list all settings: moldau config show"


def _apply_layer(
    entries: list[_Entry],
    values: dict[str, object],
    sources: dict[str, Source],
    problems: list[Problem],
) -> None:
    setter: dict[str, _Entry] = {}
    for entry in entries:
        alias = ALIASES.get(entry.key)
        key = KEYS.get(alias.target if alias else entry.key)
        if key is None:
            problems.append(_unknown(entry))
            continue
        if key.name in setter:
            first = setter[key.name]
            problems.append(
                Problem(
                    text=f"{first.name} ({first.source}) and {entry.name} ({entry.source}) "
                    f"both set {key.name}",
                    hint="keep one of them",
                )
            )
            continue
        setter[key.name] = entry
        try:
            if key.is_secret and entry.source.layer is Layer.FLAG:
                raise BadValue("must not be on a command line, which all users can see")
            if alias is None:
                values[key.name] = _parse(key, entry.value)
            else:
                values[key.name] = _parse_alias(alias, key, entry.value, values[key.name])
            sources[key.name] = entry.source
        except BadValue as error:
            shown = "(hidden)" if key.is_secret else entry.value
            problems.append(_bad(entry.name, shown, entry.source, str(error)))


def _parse(key: Key, raw: object) -> object:
    value = parse_value(key, raw)
    if key.name == "kafka.sasl_mechanisms" and value is not None:
        return ",".join(parse_mechanisms(value)) or None
    return value


def _parse_alias(alias: Alias, key: Key, raw: object, current: object) -> object:
    if isinstance(current, Endpoint):
        text = str(raw).strip()
        if not (text.isascii() and text.isdigit() and int(text) <= 65535):
            raise BadValue("must be a port: 0 to 65535")
        return current._replace(port=int(text))
    if alias.factor == 1:
        return parse_value(key, raw)
    text = str(raw).strip()
    if not re.fullmatch(r"-1|\d{1,12}", text):
        raise BadValue("must be a whole number, or -1 for no limit")
    number = int(text)
    return parse_value(key, number if number == -1 else number * alias.factor)


def _quote(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _bad(name: str, value: object, source: Source, reason: str) -> Problem:
    return Problem(text=f"{name} = {_quote(value)} ({source}) {reason}")


def _unknown(entry: _Entry) -> Problem:
    if entry.key in SECTIONS:
        text = f"{entry.key} ({entry.source}) must contain keys"
        return Problem(text=text, hint=f"for example {_example(entry.key)}")
    guess = section_setting(entry.key) or nearest(entry.key, [*KEYS, *ALIASES])
    return Problem(
        text=f"unknown key {entry.key} ({entry.source})",
        hint=f"did you mean {guess}?" if guess else _LIST_HINT,
    )


def _example(section: str) -> str:
    return next(name for name, key in KEYS.items() if key.section == section)


def _check_together(
    values: Mapping[str, object], sources: Mapping[str, Source], problems: list[Problem]
) -> None:

    def refuse(name: str, reason: str, hint: str = "") -> None:
        problem = _bad(name, _plain(values[name]), sources[name], reason)
        problems.append(replace(problem, hint=hint))

    def at_most(low: str, high: str, unset: int = 0) -> None:
        most = values[high] if values[high] is not None else unset
        if int(str(values[low])) > int(str(most)):
            # Blame the one that was set, not the default.
            if sources[low].layer is Layer.DEFAULT and sources[high].layer is not Layer.DEFAULT:
                refuse(high, f"must be at least {low}, which is {values[low]}")
            else:
                refuse(low, f"must be at most {high}, which is {most}")

    at_most("kafka.connections_per_address_max", "kafka.connections_max")
    at_most("kafka.inflight_bytes_per_connection_max", "kafka.inflight_bytes_max")
    at_most("topic.message_bytes_max", "kafka.request_bytes_max")
    at_most("topic.min_insync_replicas", "topic.replication_factor", unset=DEFAULT_REPLICATION_MAX)
    at_most("group.session_timeout_ms_min", "group.session_timeout_ms_max")
    at_most("group.member_bytes_max", "group.bytes_max")
    at_most("group.bytes_max", "group.memory_bytes_max")
    at_most("group.consumer_heartbeat_interval_ms", "group.consumer_session_timeout_ms")

    for name in ("kafka.advertised", "join_addr"):
        value = values[name]
        if isinstance(value, Endpoint) and value.port == 0:
            refuse(name, "must have a port")
    for member in str(values["initial_members"] or "").split(","):
        try:
            if member.strip() and parse_address(member).port == 0:
                raise BadValue("must have ports")
        except BadValue as error:
            refuse("initial_members", f"contains '{member.strip()}': it {error}")
    if values["initial_members"] and values["bootstrap"]:
        reason = "is for clusters without initial_members, which decide who bootstraps"
        refuse("bootstrap", reason, "set one of them")
    for host in str(values["http.hosts"] or "").split(","):
        if host.strip() and not _HOST.fullmatch(host.strip()):
            refuse(
                "http.hosts",
                f"contains '{host.strip()}', which is not a valid host",
                "a host is a name or an address, without scheme and port: broker.example.com",
            )
    for origin in str(values["http.cors_origins"] or "").split(","):
        if origin.strip() and not _ORIGIN.fullmatch(origin.strip()):
            refuse(
                "http.cors_origins",
                f"contains '{origin.strip()}', which is not a valid origin",
                "an origin is a scheme, a host and a port: https://host or http://host:8000, or *",
            )


def _check_listeners(
    config: ServerConfig,
    values: Mapping[str, object],
    sources: Mapping[str, Source],
    problems: list[Problem],
) -> None:
    chosen = (Layer.FILE, Layer.ENVIRONMENT, Layer.FLAG)
    is_set = {name: source.layer in chosen for name, source in sources.items()}
    for key, reason, hint in violations(config, is_set):
        if key in values:
            problem = _bad(key, _plain(values[key]), sources[key], reason)
        else:
            problem = Problem(text=f"{key} ({sources['listeners']}) {reason}")
        problems.append(replace(problem, hint=hint))


def _plain(value: object) -> object:
    """As a file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return (
        str(value) if isinstance(value, Endpoint | Listeners | ComponentLevels | StrEnum) else value
    )


def _build(values: Mapping[str, object]) -> ServerConfig:
    arguments: dict[str, object] = {}
    for section in SECTIONS.values():
        inner = {
            key.field: values[key.name] for key in KEYS.values() if key.section == section.name
        }
        arguments[section.name] = section.type(**inner)
    arguments.update({key.name: values[key.name] for key in KEYS.values() if not key.section})
    return ServerConfig(**arguments)  # type: ignore[arg-type]

"""All settings as dotted keys (`log.flush`), read once from the schema.

Also their aliases, and their environment variables.
"""

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from moldau.model.log_levels import ComponentLevels
from moldau.model.secret import Secret
from moldau.model.topology import Endpoint
from moldau.server.config.schema import Processes, ServerConfig
from moldau.server.config.security_schema import Listeners
from moldau.server.config.setting import Setting
from moldau.server.config.units import HOUR_MS

ENV_PREFIX = "MOLDAU_"

OTHER_VARIABLES: Mapping[str, str] = {
    "MOLDAU_BROKERS": "Brokers that the client commands connect to, as HOST:PORT[,HOST:PORT…].",
    "MOLDAU_HTTP": "HTTP address of a broker, for the cluster commands.",
    "MOLDAU_GRPC": "gRPC address of a broker or a proxy, for queue clients and the queue commands.",
    "MOLDAU_USER": "User that the client commands log in as.",
    "MOLDAU_PASSWORD_FILE": "File whose first line is the password of that user.",
    "MOLDAU_PASSWORD": "The password itself. Less safe: child processes inherit it.",
    "MOLDAU_MECHANISM": "SASL mechanism of the client commands.",
    "MOLDAU_TLS": "Whether the client commands encrypt their connections: true or false.",
    "MOLDAU_CAFILE": "Certificate authorities that the client commands trust, in PEM.",
    "MOLDAU_CERTFILE": "Certificate of the client commands, in PEM.",
    "MOLDAU_KEYFILE": "Key of that certificate, in PEM.",
    "MOLDAU_KEY_PASSWORD": "Password of that key. Less safe, as MOLDAU_PASSWORD.",
    "MOLDAU_PROFILE": "Profile that the client commands use: see moldau login.",
    "MOLDAU_PIPELINES_HOME": "Folder of all pipelines, for the pipeline commands.",
    "MOLDAU_JOIN_TOKEN": "The token that a broker joins with, if there is no join_token_file.",
    "MOLDAU_CONFIG": "Configuration file of a broker, if no --config is given.",
}
"""Variables with our prefix that are not broker settings."""


class Key(Struct, frozen=True, kw_only=True):
    """One setting, by its full name."""

    name: str
    section: str
    """Empty for top-level keys."""
    field: str
    type: type[
        bool | int | str | StrEnum | Endpoint | Secret | Listeners | ComponentLevels | Processes
    ]
    optional: bool
    default: object
    setting: Setting

    @property
    def is_secret(self) -> bool:
        return self.type is Secret

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.replace(".", "__").upper()


class Section(Struct, frozen=True, kw_only=True):
    name: str
    doc: str
    type: type


class Alias(Struct, frozen=True, kw_only=True):
    target: str
    doc: str
    factor: int = 1


ALIASES: Mapping[str, Alias] = {
    "port": Alias(target="kafka.addr", doc="the port of kafka.addr"),
    "replication_factor": Alias(target="topic.replication_factor", doc="topic.replication_factor"),
    "min_insync_replicas": Alias(
        target="topic.min_insync_replicas", doc="topic.min_insync_replicas"
    ),
    "log_retention_hours": Alias(
        target="log.retention_ms", doc="log.retention_ms, counted in hours", factor=HOUR_MS
    ),
}


def _key(section: str, field: FieldInfo, annotation: object) -> Key:
    kind, setting = typing.get_args(annotation)
    optional = isinstance(kind, types.UnionType)
    if optional:
        kind = next(arg for arg in typing.get_args(kind) if arg is not type(None))
    return Key(
        name=f"{section}.{field.name}" if section else field.name,
        section=section,
        field=field.name,
        type=kind,
        optional=optional,
        default=field.default,
        setting=setting,
    )


def _read_schema() -> tuple[dict[str, Key], dict[str, Section]]:
    keys: dict[str, Key] = {}
    sections: dict[str, Section] = {}
    hints = typing.get_type_hints(ServerConfig, include_extras=True)
    for field in fields(ServerConfig):
        annotation = hints[field.name]
        if not isinstance(annotation, type):
            key = _key("", field, annotation)
            keys[key.name] = key
            continue
        doc = (annotation.__doc__ or "").strip()
        sections[field.name] = Section(name=field.name, doc=doc, type=annotation)
        inner_hints = typing.get_type_hints(annotation, include_extras=True)
        for inner in fields(annotation):
            key = _key(field.name, inner, inner_hints[inner.name])
            keys[key.name] = key
    return keys, sections


KEYS, SECTIONS = _read_schema()


def nearest(name: str, known: Iterable[str]) -> str | None:
    candidates = list(known)
    matches = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    if matches:
        return matches[0]
    # `flush` probably means `log.flush`.
    ends = [candidate for candidate in candidates if candidate.rpartition(".")[2] == name]
    return ends[0] if len(ends) == 1 else None

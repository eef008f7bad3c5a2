"""Responsible for what producers put before a value, and for the schema that it names by an id.

Confluent: a zero, the id of the schema that the value was written with in four bytes, and for
Protobuf the place of the message in its file. Single-object: two fixed bytes and the fingerprint of
the schema, which has to be that of the one given.

Schemas by id are in a registry that speaks Confluent's HTTP API, or in a folder with a file for
each id (`17.avsc`, `18.json`, `19.desc`). An id that nobody knows makes a row a bad one. A registry
that does not answer says nothing about a row: the task fails, and is tried again.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from moldau.client.errors import ClientError, InvalidArgumentError

CONFLUENT_BYTES: Final = 5
_OPTION: Final = "--registry"
_URLS: Final = ("http://", "https://")
_ANSWER_SECONDS_MAX: Final = 10.0
_UNKNOWN_SECONDS: Final = 60.0
"""For so long an id that nobody knew is not asked for again."""
_NOT_FOUND: Final = 404


class Framing(StrEnum):
    NONE = "none"
    CONFLUENT = "confluent"
    SINGLE_OBJECT = "single-object"


class BadRowError(ValueError):
    """A value that cannot be decoded; the text is the reason that goes with the row."""


class RegistryError(ClientError):
    """The registry cannot be asked. What it holds is not known, so no row may be judged by it."""


class WriterSchema(NamedTuple):
    """A schema as it was registered."""

    content: bytes
    references: tuple[bytes, ...] = ()
    """Schemas that it names, each after those that it names itself."""


def split_confluent(value: bytes) -> tuple[int, bytes]:
    """The id of the schema, and what follows."""
    if len(value) < CONFLUENT_BYTES or value[0] != 0:
        raise BadRowError("no header of Confluent's wire format before the value")
    return int.from_bytes(value[1:CONFLUENT_BYTES], "big"), value[CONFLUENT_BYTES:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Where schemas are. Plain data: it travels to tasks, with the files of a folder."""

    place: str
    options: tuple[tuple[str, str], ...] = ()
    """For the client of a registry, as `basic.auth.user.info`."""
    files: tuple[tuple[int, bytes], ...] = ()

    def finder(self, *, serialized: bool = False) -> Callable[[int], WriterSchema | None]:
        """A function from an id to its schema, or to None if nobody knows it; RegistryError.

        `serialized` asks for a Protobuf file as its descriptor.
        """
        if self.place.startswith(_URLS):
            return _Lookup(self, serialized).find
        return {schema_id: WriterSchema(content) for schema_id, content in self.files}.get


def registry_at(place: str, options: Mapping[str, str] | None = None) -> Registry:
    """Raises InvalidArgumentError if `place` is neither a URL nor a folder with schemas."""
    told = tuple(sorted((options or {}).items()))
    if place.startswith(_URLS):
        return Registry(place=place, options=told)
    if told:
        raise InvalidArgumentError(
            f"a folder of schemas has no option {told[0][0]}",
            hint=f"options are for a registry: {_OPTION} http://HOST:8081",
        )
    hint = f"{_OPTION} is the URL of a registry, or a folder with a file for each id: 17.avsc"
    try:
        paths = sorted(path for path in Path(place).iterdir() if path.stem.isdecimal())
        files = {int(path.stem): path.read_bytes() for path in paths}
    except OSError as error:
        raise InvalidArgumentError(
            f"the schemas in {place} cannot be read: {error.strerror}", hint=hint
        ) from None
    if not files:
        raise InvalidArgumentError(f"there is no schema in {place}", hint=hint)
    if len(files) < len(paths):
        raise InvalidArgumentError(f"there are two files of one schema in {place}", hint=hint)
    return Registry(place=place, files=tuple(files.items()))


class _Lookup:
    """What was asked of a registry by this process."""

    def __init__(self, registry: Registry, serialized: bool) -> None:
        self._place = registry.place
        self._format = "serialized" if serialized else None
        self._client = _new_client(registry)
        self._known: dict[int, WriterSchema] = {}
        self._unknown_at: dict[int, float] = {}

    def find(self, schema_id: int) -> WriterSchema | None:
        found = self._known.get(schema_id)
        if found is not None:
            return found
        if time.monotonic() - self._unknown_at.get(schema_id, -_UNKNOWN_SECONDS) < _UNKNOWN_SECONDS:
            return None
        schema = self._ask(partial(self._client.get_schema, schema_id, fmt=self._format))
        if schema is None:
            self._unknown_at[schema_id] = time.monotonic()
            return None
        references: dict[str, bytes] = {}
        # Of a Protobuf file nothing is needed but the names of its messages.
        if self._format is None:
            self._collect(schema, references, schema_id)
        found = WriterSchema(_content(schema), tuple(references.values()))
        self._known[schema_id] = found
        return found

    def _collect(self, schema: Any, found: dict[str, bytes], schema_id: int) -> None:
        for reference in schema.references or ():
            if reference.name in found:
                continue
            asked = partial(self._client.get_version, reference.subject, reference.version)
            named = self._ask(asked)
            if named is None:
                raise RegistryError(
                    f"schema {schema_id} of {self._place} names version {reference.version} of "
                    f"{reference.subject}, which is not there",
                    hint="the registry has to hold all that its schemas name",
                )
            self._collect(named.schema, found, schema_id)
            found[reference.name] = _content(named.schema)

    def _ask(self, question: Callable[[], Any]) -> Any | None:
        try:
            return question()
        except Exception as error:
            # What its client raises when there is no connection depends on its version.
            if getattr(error, "http_status_code", None) == _NOT_FOUND:
                return None
            raise RegistryError(
                f"the schema registry at {self._place} cannot be asked: {type(error).__name__}: "
                f"{error}",
                hint=f"is it up, and are {_OPTION} and {_OPTION}-option right? nothing was lost: "
                "the batch is read again",
            ) from error


def _content(schema: Any) -> bytes:
    return str(schema.schema_str or "").encode()


def _new_client(registry: Registry) -> Any:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError:
        raise InvalidArgumentError(
            "a schema registry needs the package confluent-kafka with its extra schemaregistry",
            hint="install it: pip install 'moldau[spark]'",
        ) from None
    conf = {"url": registry.place, "timeout": _ANSWER_SECONDS_MAX, **dict(registry.options)}
    try:
        return SchemaRegistryClient(conf)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"the schema registry {registry.place}: {error}", hint=f"see {_OPTION}-option"
        ) from None

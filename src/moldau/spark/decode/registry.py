"""Framing of values, and lookup of their schemas by id.

Confluent: a zero byte, the schema id in four bytes, and for Protobuf the index of the message in
its file. Single-object: two fixed bytes and the fingerprint of the schema.

Schemas by id are in a registry with Confluent's HTTP API, or in a folder with a file for each id
(`17.avsc`, `18.json`, `19.desc`). A row with an unknown id is bad. If the registry does not
respond, the task fails and is retried.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from moldau.client.errors import ClientError, InvalidArgumentError

CONFLUENT_BYTES: Final = 5
_OPTION: Final = "--registry"
_URLS: Final = ("http://", "https://")
_REQUEST_SECONDS_MAX: Final = 10.0
_UNKNOWN_SECONDS: Final = 60.0
"""How long an unknown id is cached."""
_NOT_FOUND: Final = 404


class BadRowError(ValueError):
    """An undecodable value; the text is the error of the row."""


class RegistryError(ClientError):
    """A registry request failed, so no row can be classified as good or bad."""


class WriterSchema(NamedTuple):
    """A registered schema."""

    content: bytes
    references: tuple[bytes, ...] = ()
    """Referenced schemas, each after its own references."""


def split_confluent(value: bytes) -> tuple[int, bytes]:
    """The id of the schema, and what follows."""
    if len(value) < CONFLUENT_BYTES or value[0] != 0:
        raise BadRowError("the value has no header of Confluent's wire format")
    return int.from_bytes(value[1:CONFLUENT_BYTES], "big"), value[CONFLUENT_BYTES:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """A registry, or a folder with its files. Plain data, sent to tasks."""

    place: str
    options: tuple[tuple[str, str], ...] = ()
    """For the client of a registry, such as `basic.auth.user.info`."""
    files: tuple[tuple[int, bytes], ...] = ()

    def finder(self, *, serialized: bool = False) -> Callable[[int], WriterSchema | None]:
        """A function from an id to its schema, or None if it is unknown; raises RegistryError.

        `serialized` requests a Protobuf file as its descriptor.
        """
        if self.place.startswith(_URLS):
            return _Lookup(self, serialized).find
        return {schema_id: WriterSchema(content) for schema_id, content in self.files}.get


def registry_at(place: str, options: Mapping[str, str] | None = None) -> Registry:
    """Raises InvalidArgumentError if `place` is neither a URL nor a folder with schemas."""
    given = tuple(sorted((options or {}).items()))
    if place.startswith(_URLS):
        return Registry(place=place, options=given)
    if given:
        raise InvalidArgumentError(
            f"option {given[0][0]} needs the URL of a registry, not a folder",
            hint=f"{_OPTION} http://HOST:8081",
        )
    hint = f"{_OPTION} must be the URL of a registry, or a folder with a file for each id: 17.avsc"
    try:
        paths = sorted(path for path in Path(place).iterdir() if path.stem.isdecimal())
        files = {int(path.stem): path.read_bytes() for path in paths}
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot read the schemas in {place}: {error.strerror}", hint=hint
        ) from None
    if not files:
        raise InvalidArgumentError(f"there is no schema in {place}", hint=hint)
    if len(files) < len(paths):
        raise InvalidArgumentError(f"there are two files for one schema id in {place}", hint=hint)
    return Registry(place=place, files=tuple(files.items()))


class _Lookup:
    """Cached lookups in a registry."""

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
        schema = self._request(partial(self._client.get_schema, schema_id, fmt=self._format))
        if schema is None:
            self._unknown_at[schema_id] = time.monotonic()
            return None
        references: dict[str, bytes] = {}
        # Of a Protobuf file only the names of its messages are needed.
        if self._format is None:
            self._collect(schema, references, schema_id)
        found = WriterSchema(_content(schema), tuple(references.values()))
        self._known[schema_id] = found
        return found

    def _collect(self, schema: Any, found: dict[str, bytes], schema_id: int) -> None:
        for reference in schema.references or ():
            if reference.name in found:
                continue
            named = self._request(
                partial(self._client.get_version, reference.subject, reference.version)
            )
            if named is None:
                raise RegistryError(
                    f"schema {schema_id} of {self._place} references version {reference.version} "
                    f"of {reference.subject}, which does not exist",
                    hint="the registry must hold all referenced schemas",
                )
            self._collect(named.schema, found, schema_id)
            found[reference.name] = _content(named.schema)

    def _request(self, call: Callable[[], Any]) -> Any | None:
        """None if it is not found."""
        try:
            return call()
        except Exception as error:
            # Connection errors depend on the version of the client.
            if getattr(error, "http_status_code", None) == _NOT_FOUND:
                return None
            raise RegistryError(
                f"request to the schema registry at {self._place} failed: {type(error).__name__}: "
                f"{error}",
                hint=f"is it up? check {_OPTION} and {_OPTION}-option; nothing is lost: the batch "
                "is repeated",
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
    conf = {"url": registry.place, "timeout": _REQUEST_SECONDS_MAX, **dict(registry.options)}
    try:
        return SchemaRegistryClient(conf)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"invalid options of the schema registry {registry.place}: {error}",
            hint=f"see {_OPTION}-option",
        ) from None

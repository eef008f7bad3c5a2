"""Owns the list of APIs: key, name, versions, and where the classes of each are.

Modules of messages are imported at the first use of their API, so that starting a broker costs
what it needs and not what exists. The versions stand here as well as at the classes, because a
request header is read before its message is known to be wanted; a test keeps the two equal.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from importlib import import_module
from typing import Generic, NamedTuple, TypeVar, cast

from moldau.wire.fields import VERSION_MAX, Versions
from moldau.wire.schema import Message, Request, Response

NEVER_FLEXIBLE = VERSION_MAX + 1


class ApiKey(IntEnum):
    """Numbers as in the Kafka protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    API_VERSIONS = 18


class Api(NamedTuple):
    """What must be known of an API before its messages are loaded."""

    name: str
    """The stem of its two classes: ProduceRequest, ProduceResponse."""
    module: str
    versions: Versions
    flexible: int
    """First version with compact lengths and tagged fields."""


def _api(name: str, module: str, first: int, last: int, flexible: int = NEVER_FLEXIBLE) -> Api:
    return Api(name, module, Versions(first, last), flexible)


APIS: dict[int, Api] = {
    ApiKey.PRODUCE: _api("Produce", "produce", 3, 13, 9),
    ApiKey.FETCH: _api("Fetch", "fetch", 4, 18, 12),
    ApiKey.LIST_OFFSETS: _api("ListOffsets", "list_offsets", 1, 10, 6),
    ApiKey.METADATA: _api("Metadata", "metadata", 0, 13, 9),
    ApiKey.API_VERSIONS: _api("ApiVersions", "api_versions", 0, 4, 3),
}

M = TypeVar("M", bound=Message)


class MessageTypes(Mapping[int, type[M]], Generic[M]):
    """Classes by API key, imported when they are asked for."""

    def __init__(self, suffix: str, base: type[M]) -> None:
        self._suffix = suffix
        self._base = base
        self._loaded: dict[int, type[M]] = {}

    def __getitem__(self, key: int) -> type[M]:
        found = self._loaded.get(key)
        return self._load(key) if found is None else found

    def __contains__(self, key: object) -> bool:
        return key in APIS

    def __iter__(self) -> Iterator[int]:
        return iter(APIS)

    def __len__(self) -> int:
        return len(APIS)

    def _load(self, key: int) -> type[M]:
        api = APIS[key]
        module = import_module(f"moldau.wire.messages.{api.module}")
        loaded = getattr(module, api.name + self._suffix)
        if not issubclass(loaded, self._base):
            raise TypeError(f"{loaded!r} is no {self._base.__name__}")
        self._loaded[key] = cast("type[M]", loaded)
        return self._loaded[key]


REQUESTS: Mapping[int, type[Request]] = MessageTypes("Request", Request)
RESPONSES: Mapping[int, type[Response]] = MessageTypes("Response", Response)

"""The Kafka APIs: key, name, versions, and the modules of their messages.

Modules of messages are imported at the first use of their API, so that a broker starts faster. The
versions are both here and at the classes, because a request header is read before its message is
imported; a test compares the two.
"""

from enum import IntEnum
from importlib import import_module
from typing import Self, TypeVar, cast

from moldau.wire.fields import VERSION_MAX, Versions
from moldau.wire.schema import Message, Request, Response

NEVER_FLEXIBLE = VERSION_MAX + 1


class ApiKey(IntEnum):
    """Number as in the Kafka protocol, first and last version, first flexible version."""

    versions: Versions
    flexible: int
    """First version with compact lengths and tagged fields."""

    def __new__(cls, key: int, first: int = 0, last: int = 0, flexible: int = 0) -> Self:
        # Every row has all four; the defaults let type checkers accept ApiKey(key).
        member = int.__new__(cls, key)
        member._value_ = key
        member.versions = Versions(first, last)
        member.flexible = flexible
        return member

    @property
    def title(self) -> str:
        """The stem of its two classes: ProduceRequest, ProduceResponse."""
        return self.name.title().replace("_", "")

    PRODUCE = 0, 3, 13, 9
    FETCH = 1, 4, 18, 12
    LIST_OFFSETS = 2, 1, 10, 6
    METADATA = 3, 0, 13, 9
    OFFSET_COMMIT = 8, 2, 10, 8
    OFFSET_FETCH = 9, 1, 10, 6
    FIND_COORDINATOR = 10, 0, 6, 3
    JOIN_GROUP = 11, 0, 9, 6
    HEARTBEAT = 12, 0, 4, 4
    LEAVE_GROUP = 13, 0, 5, 4
    SYNC_GROUP = 14, 0, 5, 4
    DESCRIBE_GROUPS = 15, 0, 6, 5
    LIST_GROUPS = 16, 0, 5, 3
    SASL_HANDSHAKE = 17, 0, 1, NEVER_FLEXIBLE
    API_VERSIONS = 18, 0, 4, 3
    CREATE_TOPICS = 19, 2, 7, 5
    DELETE_TOPICS = 20, 1, 6, 4
    DELETE_RECORDS = 21, 0, 2, 2
    INIT_PRODUCER_ID = 22, 0, 5, 2
    OFFSET_FOR_LEADER_EPOCH = 23, 0, 4, 4
    ADD_PARTITIONS_TO_TXN = 24, 0, 5, 3
    ADD_OFFSETS_TO_TXN = 25, 0, 4, 3
    END_TXN = 26, 0, 5, 3
    WRITE_TXN_MARKERS = 27, 1, 2, 1
    TXN_OFFSET_COMMIT = 28, 0, 5, 3
    DESCRIBE_ACLS = 29, 1, 3, 2
    CREATE_ACLS = 30, 1, 3, 2
    DELETE_ACLS = 31, 1, 3, 2
    DESCRIBE_CONFIGS = 32, 1, 4, 4
    ALTER_CONFIGS = 33, 0, 2, 2
    DESCRIBE_LOG_DIRS = 35, 1, 4, 2
    SASL_AUTHENTICATE = 36, 0, 2, 2
    CREATE_PARTITIONS = 37, 0, 3, 2
    DELETE_GROUPS = 42, 0, 2, 2
    ELECT_LEADERS = 43, 0, 2, 2
    INCREMENTAL_ALTER_CONFIGS = 44, 0, 1, 1
    ALTER_PARTITION_REASSIGNMENTS = 45, 0, 1, 0
    LIST_PARTITION_REASSIGNMENTS = 46, 0, 0, 0
    OFFSET_DELETE = 47, 0, 0, NEVER_FLEXIBLE
    DESCRIBE_CLIENT_QUOTAS = 48, 0, 1, 1
    ALTER_CLIENT_QUOTAS = 49, 0, 1, 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0, 0, 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, 0, 0, 0
    DESCRIBE_CLUSTER = 60, 0, 2, 0
    DESCRIBE_PRODUCERS = 61, 0, 0, 0
    DESCRIBE_TRANSACTIONS = 65, 0, 0, 0
    LIST_TRANSACTIONS = 66, 0, 2, 0
    CONSUMER_GROUP_HEARTBEAT = 68, 0, 1, 0
    CONSUMER_GROUP_DESCRIBE = 69, 0, 1, 0
    LIST_CONFIG_RESOURCES = 74, 0, 1, 0
    DESCRIBE_TOPIC_PARTITIONS = 75, 0, 0, 0


APIS: dict[int, ApiKey] = {int(key): key for key in ApiKey}

M = TypeVar("M", bound=Message)


class MessageTypes(dict[int, type[M]]):
    """Classes by API key; holds those that were used, and imports others when they are."""

    def __init__(self, suffix: str, base: type[M]) -> None:
        super().__init__()
        self._suffix = suffix
        self._base = base

    def __missing__(self, key: int) -> type[M]:
        api = APIS[key]
        module = import_module(f"moldau.wire.messages.{api.name.lower()}")
        loaded = getattr(module, api.title + self._suffix)
        if not issubclass(loaded, self._base):
            raise TypeError(f"{loaded!r} is not a {self._base.__name__}")
        self[key] = cast("type[M]", loaded)
        return self[key]


REQUESTS: MessageTypes[Request] = MessageTypes("Request", Request)
RESPONSES: MessageTypes[Response] = MessageTypes("Response", Response)

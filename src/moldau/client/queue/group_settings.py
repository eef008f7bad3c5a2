"""The settings with which a worker connects to a group."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypedDict, TypeVar

from moldau.client.errors import InvalidArgumentError
from moldau.client.queue.outgoing import milliseconds
from moldau.proto.v1 import queue_pb2 as pb

Mode = Literal["queue", "ordered"]
Start = Literal["earliest", "latest"]

_MODES: Final = {None: pb.MODE_UNSPECIFIED, "queue": pb.QUEUE, "ordered": pb.ORDERED}
_STARTS: Final = {None: pb.START_UNSPECIFIED, "earliest": pb.EARLIEST, "latest": pb.LATEST}

T = TypeVar("T")


class GroupSettings(TypedDict, total=False):
    """Keyword arguments of `connect` and `work`. The group stores them; None leaves them unchanged.

    mode              "queue" (default): each message is leased; "ordered": each partition has one
                      consumer. None: that of an existing group
    visibility        lease of a message, in seconds
    attempts          deliveries before a message is moved to `dead_letter`
    backoff           pause before a redelivery, in seconds; doubles up to `backoff_max`
    dead_letter       the dead-letter topic
    start             where a new group starts: "earliest" or "latest"
    session_timeout   seconds without a heartbeat after which a consumer is evicted
    client_id         of this worker, instead of the client's
    """

    mode: Mode | None
    visibility: float | None
    attempts: int | None
    backoff: float | None
    backoff_max: float | None
    dead_letter: str | None
    start: Start | None
    session_timeout: float | None
    client_id: str | None


def connect_request(
    group: str, topics: str | Sequence[str], client_id: str, settings: GroupSettings
) -> pb.ConnectRequest:
    """Raises InvalidArgumentError, and TypeError for an unknown setting."""
    if unknown := settings.keys() - GroupSettings.__annotations__:
        names = ", ".join(GroupSettings.__annotations__)
        raise TypeError(f"unknown setting {min(unknown)!r}; valid settings: {names}")
    own_client_id = settings.get("client_id")
    return pb.ConnectRequest(
        group=group,
        topics=[topics] if isinstance(topics, str) else list(topics),
        mode=_choice(_MODES, settings.get("mode", "queue"), "mode"),
        client_id=client_id if own_client_id is None else own_client_id,
        session_timeout_ms=_ms(settings.get("session_timeout"), "session_timeout"),
        settings=pb.QueueSettings(
            visibility_ms=_ms(settings.get("visibility"), "visibility"),
            attempts_max=_attempts(settings.get("attempts")),
            backoff_ms=_ms(settings.get("backoff"), "backoff"),
            backoff_ms_max=_ms(settings.get("backoff_max"), "backoff_max"),
            dead_letter_topic=settings.get("dead_letter") or "",
        ),
        start=_choice(_STARTS, settings.get("start"), "start"),
    )


def _choice(choices: Mapping[str | None, T], given: str | None, what: str) -> T:
    found = choices.get(given if given is None else str(given).lower())
    if found is None:
        names = ", ".join(f'"{name}"' for name in choices if name)
        raise InvalidArgumentError(f"unknown {what} {given!r}", hint=f"one of {names}")
    return found


def _ms(seconds: float | None, what: str) -> int:
    if seconds is None:
        return 0
    # To the broker, 0 means not set.
    if (found := milliseconds(seconds, what)) == 0:
        raise InvalidArgumentError(f"{what} must be at least 0.001 seconds, not {seconds!r}")
    return found


def _attempts(attempts: int | None) -> int:
    if attempts is None:
        return 0
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise InvalidArgumentError(f"attempts must be an int, 1 or more, not {attempts!r}")
    return attempts

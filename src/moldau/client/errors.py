"""Errors of the clients: the message says what failed, `hint` what to do next.

MoldauError
└── ClientError                a request failed
    ├── UnreachableError       no broker could be reached
    ├── NotFoundError          the topic, partition or group does not exist
    ├── TimedOutError          a broker was reached, but did not respond in time
    ├── InvalidArgumentError   an argument or setting is invalid; also a ValueError
    ├── BufferFullError        send waited for room in the buffer, and timed out
    ├── DeliveryFailedError    messages sent before were not delivered; all in `errors`
    ├── SendFailedError        messages for a queue were not sent, or their fate is unknown
    ├── LeaseLostError         the lease of a queue message was lost: it cannot be acked
    └── RejectedError          a broker responded with an error code
        └── UnavailableError   … that is temporary: the same request may succeed later
"""

from collections.abc import Mapping, Sequence
from typing import Any

from moldau.model.errors import ErrorCode, MoldauError

ADDRESS_HINT = 'bootstrap_servers="HOST:PORT" or MOLDAU_BROKERS'
START_HINT = f"no broker running? start one: moldau dev · other address: {ADDRESS_HINT}"
TOPIC_EXISTS_HINT = "pass exist_ok=True to ignore this"
RIGHTS_HINT = "the user may lack rights; an administrator can grant them: moldau acl add --help"
SECURITY_HINT = "check security.protocol, ssl.ca.location, sasl.mechanism, name and password"
KAFKA_PORT_HINT = (
    "use the Kafka address of a broker (kafka.addr, port 9092 by default), not its HTTP, gRPC or "
    "Raft address"
)
LOGIN_HINT = "pass security={…} with sasl.username and sasl.password"
PASSWORD_HINT = "check name and password: sasl.username and sasl.password in security={…}"
TOKEN_HINT = "it may have expired: log in again"
"""Hints name Python arguments; the command line replaces them by its options (cli/output.py)."""
_WAIT_HINT = (
    "another program at this address tries a wrong password of this user: stop it, or wait and "
    "retry; tokens of moldau login never wait"
)

_NOT_ALLOWED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class ClientError(MoldauError):
    """A request that failed."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint and hint not in message:
            # Tracebacks show notes.
            self.add_note(f"hint: {hint}")

    def add_note(self, note: str, /) -> None:
        """Once: callers such as the Spark source add the hint again."""
        if note not in getattr(self, "__notes__", ()):
            super().add_note(note)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are unpickled by a call with their args, which are not all of our arguments.
        return _restore, (type(self), self.args, self.__dict__)


class UnreachableError(ClientError):
    """No broker could be reached at the address."""


class NotFoundError(ClientError):
    """The topic, partition or group does not exist."""


class TimedOutError(ClientError):
    """A broker was reached, but did not respond in time."""


class InvalidArgumentError(ClientError, ValueError):
    """An argument or setting is invalid."""


class BufferFullError(ClientError):
    """The buffer stayed full for as long as send may wait."""


class DeliveryFailedError(ClientError):
    """Messages sent before were not delivered, and the program had not read their results."""

    def __init__(self, message: str, errors: Sequence[ClientError], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.errors = errors


class SendFailedError(ClientError):
    """Messages of one call were not sent.

    `failures`: the error of each, by its index in the call. `is_uncertain`: some may have been
    written, so sending them again may duplicate them. `sent`: where the others were written.
    """

    def __init__(
        self,
        message: str,
        failures: Mapping[int, ClientError],
        sent: Sequence[object],
        *,
        is_uncertain: bool,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.failures = failures
        self.sent = sent
        self.is_uncertain = is_uncertain


class LeaseLostError(ClientError):
    """A message cannot be acked, nacked or extended any more; `reason` is the API's name for why.

    It has been or will be redelivered, unless `reason` is SETTLED.
    """

    def __init__(self, message: str, reason: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class RejectedError(ClientError):
    """A broker responded with the error code `code`."""

    def __init__(self, message: str, code: int, *, hint: str = "") -> None:
        super().__init__(message, hint=hint or (RIGHTS_HINT if code in _NOT_ALLOWED else ""))
        self.code = code

    @property
    def name(self) -> str:
        """The name of the code in the Kafka protocol, such as NOT_LEADER_OR_FOLLOWER."""
        return code_name(self.code)


class UnavailableError(RejectedError):
    """A broker is temporarily unavailable; the same request may succeed later."""


def login_hint(detail: str, otherwise: str = "") -> str:
    """What to do after a broker refused a login, by what it said."""
    if "too many failed logins" in detail:
        return _WAIT_HINT
    if "the broker is busy" in detail:
        return "retry later"
    if "token is not valid" in detail:
        return TOKEN_HINT
    return otherwise or (PASSWORD_HINT if "Authentication failed" in detail else LOGIN_HINT)


def code_name(code: int) -> str:
    """The name of an error code, or its number if it is unknown."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _restore(kind: type[ClientError], args: tuple[Any, ...], state: dict[str, Any]) -> ClientError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error

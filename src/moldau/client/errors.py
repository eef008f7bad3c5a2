"""Owns the errors of the client side: what failed, and in `hint` what to do next.

MoldauError
└── ClientError            a request that did not succeed
    ├── UnreachableError   no broker answers
    ├── NotFoundError      the topic, partition or group does not exist
    ├── TimedOutError      a broker is there, but did not answer in time
    ├── InvalidArgumentError   what was asked for cannot be right; also a ValueError
    ├── BufferFullError    more was sent than brokers took, for longer than send may wait
    ├── DeliveryFailedError    messages that were sent before did not arrive; all in `errors`
    ├── SendFailedError    messages for a queue were not taken, or nobody knows whether they were
    ├── LeaseLostError     a message of a queue is not ours any more: it cannot be acked
    └── RejectedError      a broker answered with an error code
        └── UnavailableError   … that says it cannot just now; the same request may succeed later
"""

from collections.abc import Mapping, Sequence
from typing import Any

from moldau.model.errors import ErrorCode, MoldauError

START_HINT = (
    "no broker running? start one: moldau dev · other address: -b HOST:PORT or MOLDAU_BROKERS"
)


class ClientError(MoldauError):
    """A request that did not succeed."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are unpickled by a call with their args, which are not all that ours take.
        return _restore, (type(self), self.args, self.__dict__)


class UnreachableError(ClientError):
    """No broker answers at the address."""


class NotFoundError(ClientError):
    """The topic, partition or group does not exist."""


class TimedOutError(ClientError):
    """A broker is there, but did not answer in time."""


class InvalidArgumentError(ClientError, ValueError):
    """What was asked for cannot be right, whatever the broker says."""


class BufferFullError(ClientError):
    """More was sent than brokers took, for longer than a call of send may wait."""


class DeliveryFailedError(ClientError):
    """Messages that were sent before did not arrive, and nobody had looked at their results."""

    def __init__(self, message: str, errors: Sequence[ClientError], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.errors = errors


class SendFailedError(ClientError):
    """Messages of one call were not sent.

    `failures` says for each, by its place in the call, why. `is_uncertain`: some of them may be
    there all the same, so to send them again may double them. `sent` says where the others are.
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
    """A message cannot be acked, nacked or extended any more; `reason` is the broker's word for it.

    It is delivered again, or was, unless `reason` is SETTLED.
    """

    def __init__(self, message: str, reason: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class RejectedError(ClientError):
    """A broker answered with an error code, which stands in `code`."""

    def __init__(self, message: str, code: int, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code

    @property
    def name(self) -> str:
        """The name of the code, or its number if it is none that we know."""
        try:
            return ErrorCode(self.code).name
        except ValueError:
            return str(self.code)


class UnavailableError(RejectedError):
    """A broker answered that it cannot just now; the same request may succeed later."""


def _restore(kind: type[ClientError], args: tuple[Any, ...], state: dict[str, Any]) -> ClientError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error

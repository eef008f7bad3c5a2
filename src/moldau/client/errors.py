"""Owns the errors of the client side: what failed, and in `hint` what to do next.

MoldauError
└── ClientError            a request that did not succeed
    ├── UnreachableError   no broker answers
    ├── NotFoundError      the topic, partition or group does not exist
    └── TimedOutError      a broker is there, but did not answer in time
"""

from moldau.model.errors import MoldauError

START_HINT = (
    "no broker running? start one: moldau dev · other address: -b HOST:PORT or MOLDAU_BROKERS"
)


class ClientError(MoldauError):
    """A request that did not succeed."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UnreachableError(ClientError):
    """No broker answers at the address."""


class NotFoundError(ClientError):
    """The topic, partition or group does not exist."""


class TimedOutError(ClientError):
    """A broker is there, but did not answer in time."""

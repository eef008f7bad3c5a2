"""What one client sent and received through its connection: counted for every request, so cheap."""

from typing import Final

TEXT_CHARS_MAX: Final = 255
"""Of what a client says of itself: it may send much more, and the broker keeps it."""


class Traffic:
    """Since the connection was opened."""

    __slots__ = (
        "_muted_at",
        "_throttled_seconds",
        "bytes_in",
        "client_id",
        "errors",
        "opened_at",
        "requests",
        "software",
        "version",
    )

    def __init__(self, now: float) -> None:
        self.opened_at = now
        self.bytes_in = 0
        self.requests = 0
        self.errors = 0
        """Requests that were answered with an error."""
        self.client_id: str | None = None
        """Of the last request."""
        self.software = ""
        self.version = ""
        self._throttled_seconds = 0.0
        self._muted_at: float | None = None

    def called(self, client_id: str | None) -> None:
        self.client_id = None if client_id is None else client_id[:TEXT_CHARS_MAX]

    def runs(self, software: str, version: str) -> None:
        self.software, self.version = software[:TEXT_CHARS_MAX], version[:TEXT_CHARS_MAX]

    def mute(self, now: float) -> None:
        """Nothing is read of the client from now on."""
        if self._muted_at is None:
            self._muted_at = now

    def unmute(self, now: float) -> None:
        self._throttled_seconds = self.throttled_seconds(now)
        self._muted_at = None

    @property
    def is_muted(self) -> bool:
        return self._muted_at is not None

    def throttled_seconds(self, now: float) -> float:
        muted_at = self._muted_at
        return self._throttled_seconds + (0.0 if muted_at is None else now - muted_at)

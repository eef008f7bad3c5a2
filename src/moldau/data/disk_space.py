"""Rejects writes while the data disk is nearly full."""

from moldau.model.errors import ErrorCode, RefusedError


class DiskGuard:
    """Rejects client writes while less than the reserve is free.

    The reserve is for committed offsets, metadata and a clean shutdown.
    """

    __slots__ = ("is_full",)

    def __init__(self) -> None:
        self.is_full = False

    def check(self) -> None:
        """Raises RefusedError with a retriable code."""
        if self.is_full:
            raise RefusedError(
                ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full; retry when there is free space"
            )

"""Owns the answer to: is there room on the disk? Whoever would fill it asks first."""

from moldau.model.errors import ErrorCode, RefusedError


class DiskGuard:
    """Refuses what takes up room while less than the reserve is free.

    The reserve is for what must go on: committed offsets, metadata, closing in order.
    """

    __slots__ = ("is_full",)

    def __init__(self) -> None:
        self.is_full = False

    def check(self) -> None:
        """Raises RefusedError, with a code that clients try again."""
        if self.is_full:
            raise RefusedError(
                ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full; try again when there is room"
            )

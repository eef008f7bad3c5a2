"""Owns what is said and done when records that should be read are not there any more."""

import logging

from moldau.client.errors import ClientError

log = logging.getLogger(__name__)

HINT = (
    "to go on without them, set option failOnDataLoss to false; to keep records for longer, raise "
    "retention.ms of the topic"
)


class DataLossError(ClientError):
    """Records that the query should read were deleted before it came to them."""


def lost(message: str, *, fail: bool, hint: str = HINT) -> None:
    """Raise DataLossError, or, where the user said so, log it and go on."""
    if fail:
        raise DataLossError(f"{message}: {hint}", hint=hint)
    log.warning("%s; going on, since failOnDataLoss is false", message)

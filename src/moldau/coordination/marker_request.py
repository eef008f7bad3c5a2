"""The request for end markers, as brokers send it to each other."""

import msgspec


class MarkerRequest(msgspec.Struct, frozen=True, array_like=True):
    """The end of one transaction, for partitions of one leader."""

    coordinator: int
    """Partition of `__transaction_state`."""
    coordinator_epoch: int
    number: int
    """Rises with every request of that coordinator."""
    producer_id: int
    producer_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: tuple[tuple[str, int], ...]

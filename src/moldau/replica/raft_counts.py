"""Counts what the Raft groups of this broker do, over all groups since the start."""

from collections import Counter
from typing import ClassVar, Final

from moldau.model.histogram import Histogram
from moldau.raft.election import ElectionCause


class RaftCounts:
    """Counters that only rise. The driver's parts add to them directly."""

    __slots__ = (
        "appends_received",
        "appends_sent",
        "commit_seconds",
        "elections",
        "epoch_changes",
        "snapshots_received",
        "snapshots_sent",
        "won",
    )

    CAUSES: ClassVar = tuple(ElectionCause)

    def __init__(self) -> None:
        self.commit_seconds: Final = Histogram()
        """From the append on the leader to the commit."""
        self.elections: Final[Counter[ElectionCause]] = Counter()
        """In which this broker stood; pre-votes, which raise no epoch, do not count."""
        self.won: Final[Counter[ElectionCause]] = Counter()
        self.epoch_changes = 0
        self.appends_sent = 0
        """With entries."""
        self.appends_received = 0
        """With entries that were new."""
        self.snapshots_sent = 0
        self.snapshots_received = 0

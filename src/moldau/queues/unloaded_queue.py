"""What is still known of a queue that was unloaded, because nobody used it: its backlog.

While this broker leads the partition, nobody else changes the queue; it only gets new messages.
"""

from moldau.model.ids import Epoch
from moldau.queues.queue_counts import Backlog
from moldau.replica.replica import Replica


class UnloadedQueue:
    """The backlog of a queue when it was unloaded, and what was written since then."""

    __slots__ = ("_backlog", "_end", "_epoch", "_replica", "topic")

    def __init__(self, topic: str, replica: Replica, epoch: Epoch, backlog: Backlog) -> None:
        self.topic = topic
        self._replica = replica
        self._epoch = epoch
        self._end = replica.last_stable_offset
        # Its leases end while nobody looks. Delayed messages count as such until it is loaded.
        self._backlog = backlog._replace(ready=backlog.ready + backlog.leased, leased=0)

    @property
    def is_current(self) -> bool:
        """Whether this broker leads the partition since then."""
        return self._replica.is_ready and self._replica.epoch == self._epoch

    def backlog(self) -> Backlog:
        written = self._replica.last_stable_offset - self._end
        return self._backlog._replace(ready=self._backlog.ready + max(0, written))

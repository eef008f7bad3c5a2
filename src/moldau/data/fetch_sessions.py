"""The fetch sessions of this broker, and their bound.

A session belongs to the connection that opened it, and ends with it; a connection has one. Clients
open another after they have reconnected, anyway. So nobody can use, or guess, the session of
another client, and sessions of clients that have gone take no memory.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from moldau.data.fetch import PartitionFetchResult
from moldau.data.fetch_session import FetchSession, FindReplica, WantedPartition
from moldau.data.partitions import Partitions
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.replica.replica import Replica

PARTITIONS_MAX: Final = 200_000
"""Of all sessions: about half a kilobyte each."""
SESSION_PARTITIONS_MAX: Final = 10_000
_IDLE_SECONDS: Final = 120.0
"""As in Kafka: one that was not used for so long gives way to any other."""
_ID_MAX: Final = (1 << 31) - 1


class FetchSessions:
    """`now` is monotonic, in seconds."""

    def __init__(
        self,
        find: FindReplica,
        now: Callable[[], float],
        *,
        partitions_max: int = PARTITIONS_MAX,
        session_partitions_max: int = SESSION_PARTITIONS_MAX,
    ) -> None:
        self._find = find
        self._now = now
        self._partitions_max = partitions_max
        self._session_partitions_max = session_partitions_max
        self._sessions: dict[Hashable, FetchSession] = {}
        """By connection; the least recently used first."""
        self._by_owner: dict[str, int] = {}
        """Partitions."""
        self.partition_count = 0
        self.evicted_total = 0
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resume(
        self, connection: Hashable, number: int, epoch: int, *, uses_ids: bool
    ) -> FetchSession:
        """The session that a request continues; its epoch moves on. Raises RefusedError."""
        session = self._sessions.get(connection)
        if session is None or session.id != number:
            raise RefusedError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise RefusedError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != uses_ids:
            raise RefusedError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.advance()
        # To the end: the most recently used.
        self._sessions[connection] = self._sessions.pop(connection)
        session.used_at = self._now()
        return session

    def make_room(self, connection: Hashable, session: FetchSession) -> None:
        """After an update. Raises RefusedError, and closes the session, if it has grown too
        large: the client starts again, and gets a session only if it fits."""
        fits = len(session) <= self._session_partitions_max
        if not fits or not self._make_room(session.owner, 0, spared=session):
            self.close(connection)
            raise RefusedError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def open(
        self,
        connection: Hashable,
        owner: str,
        answered: Iterable[tuple[WantedPartition, PartitionFetchResult, str | None]],
        size: int,
        *,
        uses_ids: bool,
        reads_committed: bool,
        rights: object,
    ) -> int:
        """After a full fetch: the id of a new session, in place of an older one of the connection;
        0 if there is no room.

        `answered` has what the client named, what it gets, and the name of the topic.
        """
        self.close(connection)
        if not 0 < size <= self._session_partitions_max or not self._make_room(owner, size):
            return 0
        self._last_id = self._last_id + 1 if self._last_id < _ID_MAX else 1
        session = FetchSession(self._last_id, owner, self, self._find, uses_ids=uses_ids)
        session.used_at = self._now()
        self._sessions[connection] = session
        session.fill(answered, reads_committed=reads_committed, rights=rights)
        return session.id

    def close(self, connection: Hashable, number: int | None = None) -> None:
        """Ends the session of a connection; with `number` only if that is its id."""
        session = self._sessions.get(connection)
        if session is None or (number is not None and session.id != number):
            return
        del self._sessions[connection]
        self.resized(session, -len(session))
        session.close()

    def resized(self, session: FetchSession, change: int) -> None:
        self.partition_count += change
        left = self._by_owner.get(session.owner, 0) + change
        if left:
            self._by_owner[session.owner] = left
        else:
            self._by_owner.pop(session.owner, None)

    def _make_room(self, owner: str, size: int, *, spared: FetchSession | None = None) -> bool:
        """Evicts what nobody used for long, and then sessions of those who have the most: one
        client cannot push out the others, and two with as much do not push out each other."""
        while self.partition_count + size > self._partitions_max:
            connection = self._victim(owner, size, spared)
            if connection is None:
                return False
            self.evicted_total += 1
            self.close(connection)
        return True

    def _victim(self, owner: str, size: int, spared: FetchSession | None) -> Hashable | None:
        oldest = next((at for at in self._sessions.items() if at[1] is not spared), None)
        if oldest is None:
            return None
        if self._now() - oldest[1].used_at >= _IDLE_SECONDS:
            return oldest[0]
        greatest = max(self._by_owner, key=self._by_owner.__getitem__)
        if self._by_owner[greatest] <= self._by_owner.get(owner, 0) + size:
            return None
        return next(
            (at for at, session in self._sessions.items() if session.owner == greatest), None
        )


def sessions_over(partitions: Partitions, clock: Clock) -> FetchSessions:
    def find(topic: str, index: int) -> Replica | None:
        hosted = partitions.get(topic, index)
        return None if hosted is None else hosted.replica

    return FetchSessions(find, clock.monotonic)

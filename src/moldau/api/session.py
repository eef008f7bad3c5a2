"""What one client may do: all that protocol servers get of the broker.

A session belongs to a principal, an address and a listener. Its services check every call by the
table in `rules.py`, so that no protocol server can forget to.
"""

from collections import OrderedDict
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, Final, TypeVar

from moldau.api.audit import AuditLog, to_logger
from moldau.api.broker import Broker
from moldau.api.guard import OPEN_LISTENER as OPEN_LISTENER
from moldau.api.guard import Guard
from moldau.api.guard import ListenerAccess as ListenerAccess
from moldau.api.guarded.backup import GuardedBackup
from moldau.api.guarded.cluster import GuardedCluster
from moldau.api.guarded.cluster_transactions import GuardedClusterTransactions
from moldau.api.guarded.configs import GuardedConfigs
from moldau.api.guarded.groups import GuardedGroups, GuardedQueries
from moldau.api.guarded.pipelines import GuardedPipelines
from moldau.api.guarded.play import GuardedPlay
from moldau.api.guarded.queue_admin import GuardedQueueAdmin
from moldau.api.guarded.queues import GuardedQueues
from moldau.api.guarded.records import (
    GuardedAppends,
    GuardedFetch,
    GuardedOffsets,
    GuardedTransactionalProduce,
    guarded_produce,
)
from moldau.api.guarded.search import GuardedSearch
from moldau.api.guarded.security import GuardedSecurity
from moldau.api.guarded.topics import GuardedTopics
from moldau.api.guarded.transactions import GuardedProducerIds, GuardedTransactions
from moldau.api.metadata_changes import MetadataChanges
from moldau.api.quotas import Meter, Quotas
from moldau.api.record_producer import RecordProducer
from moldau.data.fetch_sessions import FetchSessions
from moldau.model.clock import Clock
from moldau.model.ids import BrokerId
from moldau.security.acl import Acl, Operation, ResourceType
from moldau.security.authorizer import Authorizer
from moldau.security.principal import ANONYMOUS, Principal

SESSIONS_MAX: Final = 10_000
"""Sessions that are kept for the next request of the same client."""

T = TypeVar("T")


class Session:
    """Without state of its own, so that requests and connections of a client can share it."""

    __slots__ = (
        "_broker",
        "_changes",
        "_guard",
        "appends",
        "auto_create_topics",
        "backup",
        "broker_id",
        "clock",
        "cluster",
        "cluster_transactions",
        "configs",
        "fetch",
        "groups",
        "offsets",
        "pipelines",
        "play",
        "produce",
        "producer_ids",
        "queries",
        "queue_admin",
        "queues",
        "search",
        "security",
        "topics",
        "transactional_produce",
        "transactions",
    )

    def __init__(
        self, guard: Guard, broker: Broker, producer: RecordProducer, changes: MetadataChanges
    ) -> None:
        self._guard = guard
        self._broker = broker
        self._changes = changes
        self.broker_id: BrokerId = broker.broker_id
        self.auto_create_topics: bool = broker.auto_create_topics
        self.clock: Clock = broker.clock
        self.topics = GuardedTopics(guard, broker)
        self.configs = GuardedConfigs(guard, broker)
        self.produce = guarded_produce(guard, broker)
        self.transactional_produce = GuardedTransactionalProduce(guard, broker)
        self.appends = GuardedAppends(guard, producer)
        self.fetch = GuardedFetch(guard, broker)
        self.offsets = GuardedOffsets(guard, broker)
        self.search = GuardedSearch(guard, broker)
        self.groups = GuardedGroups(guard, broker)
        self.queries = GuardedQueries(guard, broker)
        self.producer_ids = GuardedProducerIds(guard, broker)
        self.transactions = GuardedTransactions(guard, broker)
        self.pipelines = GuardedPipelines(guard, broker)
        self.cluster_transactions = GuardedClusterTransactions(guard, broker)
        self.cluster = GuardedCluster(guard, broker)
        self.queues = GuardedQueues(guard, broker)
        self.queue_admin = GuardedQueueAdmin(guard, broker)
        self.security = GuardedSecurity(guard, broker)
        self.play = GuardedPlay(guard, broker)
        self.backup = GuardedBackup(guard, broker, self.security)

    @property
    def principal(self) -> Principal:
        return self._guard.principal

    @property
    def host(self) -> str:
        """The address of the client."""
        return self._guard.host

    @property
    def access(self) -> ListenerAccess:
        """What the listener of the client allows."""
        return self._guard.access

    @property
    def read_only(self) -> bool:
        return self._guard.access.read_only

    def meter(self) -> Meter | None:
        """What charges the client for this request; None: it has no quota."""
        return self._guard.meter()

    @property
    def fetch_sessions(self) -> FetchSessions:
        """Of all clients. They hold what clients named; only `fetch` reads data."""
        return self._broker.fetch_sessions

    def rights(self) -> object:
        """Another object after each change of ACLs."""
        return self._guard.rights()

    # ---- the client's own rights

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether an ACL allows it; a read-only listener may still refuse it."""
        return self._guard.may(operation, kind, name)

    def operations(
        self, kind: ResourceType, name: str, among: Iterable[Operation]
    ) -> list[Operation]:
        """Those of `among` that the client may do."""
        return self._guard.operations(kind, name, among)

    async def decided(self, change: Coroutine[Any, Any, T]) -> T:
        """The result of a change of the metadata, with a deadline. Raises RefusedError."""
        return await self._changes.result(change)


class Sessions:
    """Makes sessions. `super_users` None: no authorisation, everything is allowed.

    `audit` is the logger of audits unless it is given.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        super_users: frozenset[Principal] | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._broker = broker
        self.quotas = Quotas(broker.clock)
        self._super_users = super_users
        self._audit = audit or AuditLog(broker.clock, to_logger)
        self._producer = RecordProducer(broker)
        self._changes = MetadataChanges(broker)
        self._acls: Collection[Acl] | None = None
        self._authorizer: Authorizer | None = None
        self._sessions: OrderedDict[tuple[Principal, str, ListenerAccess], Session] = OrderedDict()

    def session(
        self, principal: Principal, host: str, *, listener: ListenerAccess = OPEN_LISTENER
    ) -> Session:
        """The session of a client at this address, who is known by then."""
        key = (principal, host, listener)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = self._make(principal, host, listener)
            if len(self._sessions) > SESSIONS_MAX:
                # Its connections keep it.
                self._sessions.popitem(last=False)
        return session

    def anonymous(self, host: str, *, listener: ListenerAccess = OPEN_LISTENER) -> Session:
        """The session of a client that has not said who it is."""
        return self.session(ANONYMOUS, host, listener=listener)

    @property
    def authorizes(self) -> bool:
        """Whether clients have different rights."""
        return self._super_users is not None

    def wake_fetches(self) -> None:
        """Completes all waiting fetches: the broker is stopping."""
        self._broker.fetch.complete_all()

    def _make(self, principal: Principal, host: str, listener: ListenerAccess) -> Session:
        authorizer = None if self._super_users is None else self.authorizer
        is_guarded = authorizer is not None or listener.read_only
        audit = self._audit if is_guarded else None
        guard = Guard(principal, host, listener, authorizer, audit, self.quotas)
        return Session(guard, self._broker, self._producer, self._changes)

    def authorizer(self) -> Authorizer:
        """That of the current ACLs; the same object until they change."""
        acls = self._broker.metadata.image.acls
        if self._authorizer is None or acls is not self._acls:
            self._acls = acls
            self._authorizer = Authorizer(acls, self._super_users or frozenset())
        return self._authorizer

"""Decides what one client may do, by the table of rules and the ACLs of the cluster."""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from moldau.api.audit import AuditLog, Parts
from moldau.api.quotas import CLIENT_ID, Meter, Quotas
from moldau.api.rules import RULES, Rule
from moldau.metadata.config_types import shown
from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.acl import CLUSTER_NAME, Operation, Resource, ResourceType
from moldau.security.authorizer import Authorizer
from moldau.security.principal import Principal

REFUSAL_CODES: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_NOUNS: Final = {
    ResourceType.TOPIC: "topic ",
    ResourceType.GROUP: "group ",
    ResourceType.CLUSTER: "the cluster",
    ResourceType.TRANSACTIONAL_ID: "transactional id ",
}
_GRANTED_MAX: Final = 10_000
"""Names that a session remembers as allowed, per use case."""


class ListenerAccess(Struct, frozen=True, kw_only=True):
    """What a listener lets all of its clients do."""

    name: str = ""
    read_only: bool = False
    """Refuses every use case that changes something."""
    public_metrics: bool = False
    """Gives metrics to clients without rights."""


OPEN_LISTENER: Final = ListenerAccess()


class Guard:
    """The rights of one principal from one address through one listener.

    `authorizer` returns the one of the current ACLs, a new object after each change of them; None:
    there is no authorisation, and everything is allowed that the listener allows.
    """

    __slots__ = (
        "_audit",
        "_authorizer",
        "_granted",
        "_granted_by",
        "_quotas",
        "access",
        "host",
        "is_open",
        "principal",
    )

    def __init__(
        self,
        principal: Principal,
        host: str,
        access: ListenerAccess,
        authorizer: Callable[[], Authorizer] | None,
        audit: AuditLog | None,
        quotas: Quotas | None = None,
    ) -> None:
        self.principal = principal
        self.host = host
        self.access = access
        self._authorizer = authorizer
        self._audit = audit
        self._quotas = quotas
        self.is_open = authorizer is None and not access.read_only
        """Whether everything is allowed, so that services may skip checks."""
        self._granted_by: Authorizer | None = None
        self._granted: dict[str, set[str]] = {}

    # ---- checks

    def check(
        self, use_case: str, kind: ResourceType, name: str = CLUSTER_NAME, about: object = ""
    ) -> None:
        """Raises RefusedError. `about` is for the audit log, where the name does not say it all."""
        if not self.allows(use_case, kind, name, about):
            raise self.refusal(use_case, kind, name)
        if isinstance(about, Parts):
            about.check_count()

    def allows(
        self, use_case: str, kind: ResourceType, name: str = CLUSTER_NAME, about: object = ""
    ) -> bool:
        """Like `check`, for an item of a request that has its own result. A no is audited."""
        rule = RULES[use_case]
        is_allowed = self._decides(rule, kind, name)
        if rule.audited or not is_allowed:
            resource = Resource(kind, name)
            self._record(use_case, rule.needs[kind], resource, is_allowed=is_allowed, about=about)
        return is_allowed

    def record(self, use_case: str, *, is_allowed: bool, about: object) -> None:
        """For the audit log: how a use case ended that needs no right, but a proof."""
        resource = Resource(ResourceType.CLUSTER, CLUSTER_NAME)
        operation = Operation.CLUSTER_ACTION
        self._record(use_case, operation, resource, is_allowed=is_allowed, about=about)

    def _record(
        self,
        use_case: str,
        operation: Operation,
        resource: Resource,
        *,
        is_allowed: bool,
        about: object,
    ) -> None:
        if self._audit is not None:
            self._audit.record(
                self.principal,
                self.host,
                self.access.name,
                use_case,
                operation,
                resource,
                is_allowed=is_allowed,
                about=about,
            )

    def check_listener(self, use_case: str) -> None:
        """For a use case that needs no right of the client: the listener may still refuse it."""
        if RULES[use_case].changes and self.access.read_only:
            raise RefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "This listener is read-only")

    def sees(self, use_case: str, kind: ResourceType, name: str) -> bool:
        """For an entry of a list, which is left out otherwise."""
        return self._decides(RULES[use_case], kind, name)

    def granted_topics(self, use_case: str) -> set[str]:
        """Topics for which `allows` said yes, by the current ACLs: for requests without number.

        The set is always the same object, and emptied when ACLs change; see `remember`.
        """
        return self._granted.setdefault(use_case, set())

    def remember(self, use_case: str, topic: str) -> None:
        granted = self.granted_topics(use_case)
        if len(granted) >= _GRANTED_MAX:
            granted.clear()
        granted.add(topic)

    def refresh(self) -> None:
        """Forgets what earlier ACLs granted. Call it before `granted_topics` is used."""
        if self._authorizer is not None:
            current = self._authorizer()
            if current is not self._granted_by:
                self._granted_by = current
                for granted in self._granted.values():
                    granted.clear()

    def rights(self) -> object:
        """Another object after each change of ACLs."""
        return None if self._authorizer is None else self._authorizer()

    def operations(
        self, kind: ResourceType, name: str, among: Iterable[Operation]
    ) -> list[Operation]:
        """Those of `among` that the client may do, as Kafka's tools show them."""
        if self._authorizer is None:
            return list(among)
        return [each for each in among if self.may(each, kind, name)]

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        if self._authorizer is None:
            return True
        return self._authorizer().allows(self.principal, self.host, operation, Resource(kind, name))

    def refusal(self, use_case: str, kind: ResourceType, name: str = CLUSTER_NAME) -> RefusedError:
        rule = RULES[use_case]
        what = _NOUNS[kind] + ("" if kind is ResourceType.CLUSTER else shown(name))
        if rule.changes and self.access.read_only:
            return RefusedError(REFUSAL_CODES[kind], f"This listener is read-only: {what}")
        operation = rule.needs[kind].name.lower().replace("_", " ")
        return RefusedError(REFUSAL_CODES[kind], f"Not authorized to {operation} {what}")

    # ---- quotas

    def meter(self) -> Meter | None:
        """What charges the client for this request; None: it has no quota."""
        quotas = self._quotas
        if quotas is None or quotas.active is None:
            return None
        return quotas.meter(self.principal, CLIENT_ID.get())

    # ---- decisions

    def _decides(self, rule: Rule, kind: ResourceType, name: str) -> bool:
        if rule.changes and self.access.read_only:
            return False
        if self._authorizer is None:
            return True
        allows = self._authorizer().allows
        if allows(self.principal, self.host, rule.needs[kind], Resource(kind, name)):
            return True
        if rule.or_on_cluster is not None and allows(
            self.principal,
            self.host,
            rule.or_on_cluster,
            Resource(ResourceType.CLUSTER, CLUSTER_NAME),
        ):
            return True
        return rule.or_on_any_topic is not None and self._authorizer().allows_any(
            self.principal, self.host, rule.or_on_any_topic, ResourceType.TOPIC
        )

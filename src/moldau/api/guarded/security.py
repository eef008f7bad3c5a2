"""Users, ACLs, quotas and join tokens."""

from collections.abc import Mapping, Sequence
from typing import Final

from moldau.api.audit import VALIDATED, Parts
from moldau.api.broker import Broker
from moldau.api.guard import Guard
from moldau.control.security_service import EVERY_ACL, JOIN_TOKEN_LIFETIME_MS
from moldau.metadata.security import JoinToken
from moldau.model.errors import RefusedError
from moldau.security.acl import Acl, AclFilter, ResourceType
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ITERATIONS_DEFAULT, ScramCredential, ScramMechanism

_CLUSTER: Final = ResourceType.CLUSTER


class GuardedSecurity:
    """Methods raise RefusedError."""

    __slots__ = ("_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._service = broker.security

    # ---- users

    def users(self) -> dict[str, dict[ScramMechanism, int]]:
        """The mechanisms of each user, with their iterations; never the credentials."""
        self._guard.check("security.users", _CLUSTER)
        return {
            name: {kind: credential.iterations for kind, credential in user.credentials.items()}
            for name, user in self._service.users().items()
        }

    async def put_password(
        self,
        user: str,
        password: bytes,
        *,
        mechanisms: Sequence[ScramMechanism] = tuple(ScramMechanism),
        iterations: int = ITERATIONS_DEFAULT,
    ) -> None:
        """Creates a user or changes its password."""
        names = ", ".join(each.sasl_name for each in mechanisms)
        about = f"user {user}: {names}, {iterations} iterations"
        self._guard.check("security.put_password", _CLUSTER, about=about)
        await self._service.put_password(
            user, password, mechanisms=mechanisms, iterations=iterations
        )

    async def put_credential(
        self, user: str, mechanism: ScramMechanism, credential: ScramCredential
    ) -> None:
        """Creates a user or changes one of its credentials."""
        about = f"user {user}: {mechanism.sasl_name}, {credential.iterations} iterations"
        self._guard.check("security.put_credential", _CLUSTER, about=about)
        await self._service.put_credential(user, mechanism, credential)

    async def delete_credential(self, user: str, mechanism: ScramMechanism) -> None:
        about = f"user {user}: {mechanism.sasl_name}"
        self._guard.check("security.delete_credential", _CLUSTER, about=about)
        await self._service.delete_credential(user, mechanism)

    async def delete_user(self, user: str) -> None:
        self._guard.check("security.delete_user", _CLUSTER, about=f"user {user}")
        await self._service.delete_user(user)

    # ---- ACLs

    def acls(self, acl_filter: AclFilter = EVERY_ACL) -> list[Acl]:
        self._guard.check("security.acls", _CLUSTER)
        return self._service.acls(acl_filter)

    async def create_acls(self, acls: Sequence[Acl]) -> list[RefusedError | None]:
        """For each rule, why it was refused; the others are created."""
        self._guard.check("security.create_acls", _CLUSTER, about=Parts(acls, _text_of))
        return await self._service.create_acls(acls)

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[Acl] | RefusedError]:
        """For each filter the rules that it deleted, or why it was refused."""
        self._guard.check("security.delete_acls", _CLUSTER, about=Parts(filters, _text_of))
        return await self._service.delete_acls(filters)

    # ---- quotas

    def quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        self._guard.check("security.quotas", _CLUSTER)
        return self._service.quotas()

    async def alter_quotas(
        self,
        entity: QuotaEntity,
        limits: Mapping[str, float | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Sets limits of an entity; None removes one."""
        about = f"{VALIDATED if validate_only else ''}{entity} {dict(limits)}"
        self._guard.check("security.alter_quotas", _CLUSTER, about=about)
        await self._service.alter_quotas(entity, limits, validate_only=validate_only)

    # ---- join tokens

    def join_tokens(self) -> list[JoinToken]:
        self._guard.check("security.join_tokens", _CLUSTER)
        return self._service.join_tokens()

    async def create_join_token(
        self, lifetime_ms: int = JOIN_TOKEN_LIFETIME_MS
    ) -> tuple[str, JoinToken]:
        """The token for the new broker, which is stored nowhere, and what is stored of it."""
        use_case = "security.create_join_token"
        self._guard.check(use_case, _CLUSTER, about=f"lifetime_ms={lifetime_ms}")
        token, stored = await self._service.create_join_token(lifetime_ms)
        # Joins are logged by the id.
        self._guard.check(use_case, _CLUSTER, about=f"token {stored.id}")
        return token, stored

    async def delete_join_token(self, token_id: str) -> None:
        self._guard.check("security.delete_join_token", _CLUSTER, about=f"token {token_id}")
        await self._service.delete_join_token(token_id)


def _text_of(rule: Acl | AclFilter) -> str:
    """The fields that are set, e.g. `ALLOW User:alice READ TOPIC orders LITERAL *`."""
    fields = (
        rule.permission.name,
        rule.principal,
        rule.operation.name,
        rule.resource_type.name,
        rule.resource_name,
        rule.pattern_type.name,
        rule.host,
    )
    return " ".join("(any)" if each is None else each for each in fields)

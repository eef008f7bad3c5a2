"""Administrative requests about users, ACLs and quotas.

They go over our own connections, to the broker that was named: librdkafka would go to the
controller, where the token of another broker's data directory is unknown.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from moldau.client.errors import NotFoundError
from moldau.client.wire.client import WireAdmin, check_code
from moldau.model.errors import ErrorCode
from moldau.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotasEntity,
    AlterQuotasEntry,
    AlterQuotasOperation,
)
from moldau.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from moldau.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from moldau.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from moldau.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from moldau.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from moldau.wire.schema import Request, Response

SCRAM_HASHES: Final = {1: "sha256", 2: "sha512"}
"""The mechanisms, by their numbers in the protocol."""
ITERATIONS_DEFAULT: Final = 8192
_SALT_BYTES: Final = 24
_USER: Final = "user"
_CLIENT_ID: Final = "client-id"

R = TypeVar("R", bound=Response)


class UserInfo(NamedTuple):
    """A user, and the iterations of each mechanism."""

    name: str
    credentials: Mapping[int, int]


class AclRule(NamedTuple):
    """One rule, with the numbers of the protocol."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclPattern(NamedTuple):
    """Which rules: None and 1 (any) leave something open."""

    resource_type: int = 1
    resource_name: str | None = None
    pattern_type: int = 1
    principal: str | None = None
    host: str | None = None
    operation: int = 1
    permission: int = 1


class QuotaInfo(NamedTuple):
    """The limits of a user, a client id, or both. None: not part of it; empty: the default."""

    user: str | None
    client_id: str | None
    limits: Mapping[str, float]


class SecurityAdmin(WireAdmin):
    """Users, ACLs and quotas of a cluster."""

    # ---- users

    def users(self) -> list[UserInfo]:
        """All users, by name."""
        request = DescribeUserScramCredentialsRequest(users=None)
        response = self._request(request, DescribeUserScramCredentialsResponse)
        check_code(response.error_code, "list users", response.error_message)
        found = []
        for each in response.results:
            check_code(each.error_code, f"describe user {each.user}", each.error_message)
            credentials = {info.mechanism: info.iterations for info in each.credential_infos}
            found.append(UserInfo(each.user, credentials))
        return sorted(found, key=lambda user: user.name)

    def set_password(
        self, user: str, password: str, *, iterations: int = ITERATIONS_DEFAULT
    ) -> None:
        """Create the user, or change the password. The password itself is not sent."""
        upsertions = []
        for mechanism, kind in SCRAM_HASHES.items():
            salt = secrets.token_bytes(_SALT_BYTES)
            salted = hashlib.pbkdf2_hmac(kind, password.encode(), salt, iterations)
            upsertions.append(
                ScramCredentialUpsertion(
                    name=user,
                    mechanism=mechanism,
                    iterations=iterations,
                    salt=salt,
                    salted_password=salted,
                )
            )
        request = AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions)
        self._alter_users(request, f"set the password of user {user}")

    def delete_user(self, user: UserInfo) -> None:
        """Delete all credentials."""
        deletions = [
            ScramCredentialDeletion(name=user.name, mechanism=mechanism)
            for mechanism in user.credentials
        ]
        request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[])
        self._alter_users(request, f"delete user {user.name}")

    def _alter_users(self, request: AlterUserScramCredentialsRequest, doing: str) -> None:
        response = self._request(request, AlterUserScramCredentialsResponse)
        for result in response.results:
            if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                raise NotFoundError(f"cannot {doing}: there is no such user")
            check_code(result.error_code, doing, result.error_message)

    # ---- ACLs

    def acls(self, pattern: AclPattern = AclPattern()) -> list[AclRule]:  # noqa: B008
        """The rules that match."""
        request = DescribeAclsRequest(
            resource_type_filter=pattern.resource_type,
            resource_name_filter=pattern.resource_name,
            pattern_type_filter=pattern.pattern_type,
            principal_filter=pattern.principal,
            host_filter=pattern.host,
            operation=pattern.operation,
            permission_type=pattern.permission,
        )
        response = self._request(request, DescribeAclsResponse)
        check_code(response.error_code, "list ACLs", response.error_message)
        return sorted(
            AclRule(
                each.resource_type,
                each.resource_name,
                each.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for each in response.resources
            for acl in each.acls
        )

    def create_acls(self, rules: Sequence[AclRule]) -> None:
        """Add rules; those that exist stay."""
        creations = [
            AclCreation(
                resource_type=rule.resource_type,
                resource_name=rule.resource_name,
                resource_pattern_type=rule.pattern_type,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for rule in rules
        ]
        response = self._request(CreateAclsRequest(creations=creations), CreateAclsResponse)
        for result in response.results:
            check_code(result.error_code, "add ACLs", result.error_message)

    def delete_acls(self, rules: Iterable[AclRule]) -> int:
        """Delete exactly these rules; how many existed."""
        filters = [
            DeleteAclsFilter(
                resource_type_filter=rule.resource_type,
                resource_name_filter=rule.resource_name,
                pattern_type_filter=rule.pattern_type,
                principal_filter=rule.principal,
                host_filter=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for rule in rules
        ]
        response = self._request(DeleteAclsRequest(filters=filters), DeleteAclsResponse)
        count = 0
        for result in response.filter_results:
            check_code(result.error_code, "delete ACLs", result.error_message)
            for acl in result.matching_acls:
                check_code(acl.error_code, "delete ACLs", acl.error_message)
                count += 1
        return count

    # ---- quotas

    def quotas(self) -> list[QuotaInfo]:
        """All quotas."""
        request = DescribeClientQuotasRequest(components=[], strict=False)
        response = self._request(request, DescribeClientQuotasResponse)
        check_code(response.error_code, "list quotas", response.error_message)
        found = []
        for entry in response.entries or ():
            # The protocol has null for the default entity; other parts are left out.
            names = {part.entity_type: part.entity_name or "" for part in entry.entity}
            limits = {value.key: value.value for value in entry.values}
            found.append(QuotaInfo(names.get(_USER), names.get(_CLIENT_ID), limits))
        return sorted(found, key=lambda each: (each.user or "", each.client_id or ""))

    def alter_quotas(
        self, user: str | None, client_id: str | None, limits: Mapping[str, float | None]
    ) -> None:
        """Set limits; None removes one."""
        entity = [
            AlterQuotasEntity(entity_type=kind, entity_name=name or None)
            for kind, name in ((_USER, user), (_CLIENT_ID, client_id))
            if name is not None
        ]
        changes = [
            AlterQuotasOperation(key=key, value=value or 0.0, remove=value is None)
            for key, value in limits.items()
        ]
        request = AlterClientQuotasRequest(
            entries=[AlterQuotasEntry(entity=entity, ops=changes)], validate_only=False
        )
        response = self._request(request, AlterClientQuotasResponse)
        for entry in response.entries:
            check_code(entry.error_code, "change quotas", entry.error_message)

    def _request(self, request: Request, kind: type[R]) -> R:
        return self._retry(lambda: self._client.any_broker().request(request, kind))

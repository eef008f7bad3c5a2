"""Users, ACLs, quotas and join tokens: reads them from the image, and changes them."""

import asyncio
import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from moldau.control.metadata_store import MetadataStore
from moldau.metadata.commands import (
    AlterQuotas,
    CreateAcls,
    CreateJoinToken,
    DeleteAcls,
    DeleteJoinToken,
    DeleteScramCredential,
    DeleteUser,
    PutScramCredentials,
)
from moldau.metadata.records import AclsRemoved
from moldau.metadata.security import JoinToken, User
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.acl import Acl, AclFilter
from moldau.security.acl_checks import check_acl, check_filter
from moldau.security.quotas import QuotaEntity
from moldau.security.sasl import PASSWORD_BYTES_MAX
from moldau.security.scram import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
    make_credential,
)

EVERY_ACL: Final = AclFilter()
JOIN_TOKEN_LIFETIME_MS: Final = 60 * 60 * 1000
JOIN_TOKEN_LIFETIME_MS_MAX: Final = 30 * 24 * 60 * 60 * 1000
_ID_BYTES: Final = 9
_SECRET_BYTES: Final = 24

T = TypeVar("T")


class SecurityService:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """`random_bytes` makes secrets: nobody may be able to guess what it returns."""
        self._metadata = metadata
        self._clock = clock
        self._random_bytes = random_bytes

    # ---- users

    def users(self) -> Mapping[str, User]:
        """By name."""
        return self._metadata.image.users

    async def put_password(
        self,
        user: str,
        password: bytes,
        *,
        mechanisms: Sequence[ScramMechanism] = tuple(ScramMechanism),
        iterations: int = ITERATIONS_DEFAULT,
    ) -> None:
        """Create a user or change its password. Raises RefusedError."""
        if not 0 < len(password) <= PASSWORD_BYTES_MAX:
            raise RefusedError(
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                f"A password has 1 to {PASSWORD_BYTES_MAX} bytes, not {len(password)}",
            )
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            # Checked again with the command, but by then the time would be spent.
            raise RefusedError(
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                f"The number of iterations is {iterations}, but must be {ITERATIONS_MIN} to "
                f"{ITERATIONS_MAX}",
            )
        credentials = {
            mechanism: await asyncio.to_thread(
                make_credential, password, self._random_bytes(SALT_BYTES), iterations, mechanism
            )
            for mechanism in mechanisms
        }
        await self._metadata.submit(
            PutScramCredentials(user=user, credentials=credentials, replace_all=True)
        )

    async def put_credential(
        self, user: str, mechanism: ScramMechanism, credential: ScramCredential
    ) -> None:
        """Create a user or change one of its credentials. Raises RefusedError."""
        await self._metadata.submit(
            PutScramCredentials(user=user, credentials={mechanism: credential})
        )

    async def delete_credential(self, user: str, mechanism: ScramMechanism) -> None:
        """Raises RefusedError."""
        await self._metadata.submit(DeleteScramCredential(user=user, mechanism=mechanism))

    async def delete_user(self, user: str) -> None:
        """Raises RefusedError."""
        await self._metadata.submit(DeleteUser(user=user))

    # ---- ACLs

    def acls(self, acl_filter: AclFilter = EVERY_ACL) -> list[Acl]:
        """Raises RefusedError."""
        check_filter(acl_filter)
        return sorted(acl_filter.find(self._metadata.image.acls))

    async def create_acls(self, acls: Sequence[Acl]) -> list[RefusedError | None]:
        """For each rule, why it was refused; the others are created. Raises RefusedError."""
        refusals = [_refusal(check_acl, acl) for acl in acls]
        valid = [acl for acl, refusal in zip(acls, refusals, strict=True) if refusal is None]
        if valid:
            await self._metadata.submit(CreateAcls(acls=valid))
        return refusals

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[Acl] | RefusedError]:
        """For each filter the rules that it deleted, or why it was refused. Raises RefusedError."""
        refusals = [_refusal(check_filter, each) for each in filters]
        valid = [each for each, refusal in zip(filters, refusals, strict=True) if refusal is None]
        deleted: set[Acl] = set()
        if valid:
            for record in await self._metadata.submit(DeleteAcls(filters=valid)):
                if isinstance(record, AclsRemoved):
                    deleted.update(record.acls)
        return [
            refusal if refusal is not None else sorted(each.find(deleted))
            for each, refusal in zip(filters, refusals, strict=True)
        ]

    # ---- quotas

    def quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return self._metadata.image.quotas

    async def alter_quotas(
        self,
        entity: QuotaEntity,
        limits: Mapping[str, float | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set limits of an entity; None removes one. Raises RefusedError."""
        command = AlterQuotas(entity=entity, limits=limits)
        if validate_only:
            self._metadata.preview(command)
        else:
            await self._metadata.submit(command)

    # ---- join tokens

    def join_tokens(self) -> list[JoinToken]:
        return list(self._metadata.image.join_tokens.values())

    async def create_join_token(
        self, lifetime_ms: int = JOIN_TOKEN_LIFETIME_MS
    ) -> tuple[str, JoinToken]:
        """The token for the new broker, which is stored nowhere, and what is stored of it. Raises
        RefusedError."""
        if not 0 < lifetime_ms <= JOIN_TOKEN_LIFETIME_MS_MAX:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"A join token lives up to {JOIN_TOKEN_LIFETIME_MS_MAX // 86_400_000} days",
            )
        token_id = _as_text(self._random_bytes(_ID_BYTES))
        secret = _as_text(self._random_bytes(_SECRET_BYTES))
        now = self._clock.wall_ms()
        token = JoinToken(token_id, _hash(secret), now + lifetime_ms)
        await self._metadata.submit(
            CreateJoinToken(id=token.id, hash=token.hash, expires_ms=token.expires_ms, now_ms=now)
        )
        return f"{token_id}.{secret}", token

    async def delete_join_token(self, token_id: str) -> None:
        """Raises RefusedError."""
        await self._metadata.submit(DeleteJoinToken(id=token_id))


def _refusal(check: Callable[[T], None], value: T) -> RefusedError | None:
    try:
        check(value)
    except RefusedError as error:
        return error
    return None


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _as_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()

"""Rules for users, ACLs, quotas and join tokens."""

import math
from typing import Final

from msgspec.structs import replace

from moldau.metadata.commands import (
    AlterQuotas,
    CreateAcls,
    CreateJoinToken,
    DeleteAcls,
    DeleteJoinToken,
    DeleteScramCredential,
    DeleteUser,
    PutScramCredentials,
    RegisterBroker,
)
from moldau.metadata.config_types import shown
from moldau.metadata.image import Image
from moldau.metadata.records import (
    AclsAdded,
    AclsRemoved,
    FeatureLevelSet,
    JoinTokenDropped,
    JoinTokenSet,
    MetadataRecord,
    QuotaSet,
    UserDeleted,
    UserSet,
)
from moldau.metadata.security import JOIN_TOKEN_REFUSED, JoinToken, User
from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.acl_checks import check_acl, check_filter
from moldau.security.principal import authenticated_user
from moldau.security.quotas import QuotaEntity, QuotaKey
from moldau.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    ScramCredential,
    ScramMechanism,
)

SECURITY_LEVEL: Final = 3
"""The feature level that supports users, ACLs, quotas and join tokens."""
USERS_MAX: Final = 10_000
"""Every broker stores all of them, as it does ACLs and quotas."""
ACLS_MAX: Final = 10_000
"""A change makes a new index of them, in the event loop."""
ACLS_PER_COMMAND_MAX: Final = 1_000
OPEN_FILTERS_MAX: Final = 20
"""Each is compared with all ACLs, in the event loop."""
QUOTAS_MAX: Final = 10_000
QUOTA_NAME_LENGTH_MAX: Final = 255
JOIN_TOKENS_MAX: Final = 1_000
JOIN_TOKEN_ID_LENGTH_MAX: Final = 64
JOIN_TOKEN_HASH_BYTES: Final = 32
QUOTA_LIMITS: Final = {
    QuotaKey.PRODUCE.value: "bytes per second",
    QuotaKey.FETCH.value: "bytes per second",
    QuotaKey.REQUEST.value: "percent of one core",
    QuotaKey.MUTATION.value: "partitions created or deleted per second",
}
"""Kafka's names, and their units."""


def put_scram_credentials(command: PutScramCredentials, image: Image) -> list[MetadataRecord]:
    name = command.user
    try:
        authenticated_user(name)
    except ValueError as error:
        raise RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Invalid user {shown(name)}: {error}"
        ) from None
    if not command.credentials:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "A user needs a credential")
    for mechanism, credential in command.credentials.items():
        _check_credential(credential, mechanism)
    known = image.users.get(name)
    if known is None and len(image.users) >= USERS_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"The cluster has {USERS_MAX} users, which is the limit"
        )
    kept = {} if known is None or command.replace_all else known.credentials
    created = image.version + 1 if known is None else known.created
    changed = User(name, {**kept, **command.credentials}, created)
    return [] if changed == known else [*_raise_level(image), UserSet(user=changed)]


def delete_scram_credential(command: DeleteScramCredential, image: Image) -> list[MetadataRecord]:
    known = image.users.get(command.user)
    if known is None or command.mechanism not in known.credentials:
        raise RefusedError(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"User {shown(command.user)} has no {command.mechanism.sasl_name} credential",
        )
    kept = {
        mechanism: credential
        for mechanism, credential in known.credentials.items()
        if mechanism is not command.mechanism
    }
    changed = replace(known, credentials=kept)
    return [UserSet(user=changed) if kept else UserDeleted(name=known.name)]


def delete_user(command: DeleteUser, image: Image) -> list[MetadataRecord]:
    if command.user not in image.users:
        raise RefusedError(
            ErrorCode.RESOURCE_NOT_FOUND, f"User {shown(command.user)} does not exist"
        )
    return [UserDeleted(name=command.user)]


def _check_credential(credential: ScramCredential, mechanism: ScramMechanism) -> None:
    if not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX:
        raise RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"The number of iterations is {credential.iterations}, but must be {ITERATIONS_MIN} to "
            f"{ITERATIONS_MAX}",
        )
    if not 0 < len(credential.salt) <= SALT_BYTES_MAX:
        raise RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"The salt has {len(credential.salt)} bytes, but must have 1 to {SALT_BYTES_MAX}",
        )
    for key in (credential.stored_key, credential.server_key):
        if len(key) != mechanism.hash_bytes:
            raise RefusedError(
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                f"A key of {mechanism.sasl_name} has {mechanism.hash_bytes} bytes, not {len(key)}",
            )


def create_acls(command: CreateAcls, image: Image) -> list[MetadataRecord]:
    _check_count(len(command.acls))
    for acl in command.acls:
        check_acl(acl)
    added = sorted(set(command.acls) - image.acls)
    if not added:
        return []
    if len(image.acls) + len(added) > ACLS_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"The cluster can have {ACLS_MAX} ACLs, and has {len(image.acls)}: delete some, or use "
            "prefixes",
        )
    return [*_raise_level(image), AclsAdded(acls=tuple(added))]


def delete_acls(command: DeleteAcls, image: Image) -> list[MetadataRecord]:
    _check_count(len(command.filters))
    for acl_filter in command.filters:
        check_filter(acl_filter)
    filters = set(command.filters)
    open_filters = sum(each.only() is None for each in filters)
    if open_filters > OPEN_FILTERS_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"One request can have {OPEN_FILTERS_MAX} filters that leave something open, and this "
            f"one has {open_filters}",
        )
    removed = sorted({acl for each in filters for acl in each.find(image.acls)})
    return [AclsRemoved(acls=tuple(removed))] if removed else []


def _check_count(count: int) -> None:
    if count > ACLS_PER_COMMAND_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"One request can have {ACLS_PER_COMMAND_MAX} ACLs, and this one has {count}",
        )


def alter_quotas(command: AlterQuotas, image: Image) -> list[MetadataRecord]:
    entity = command.entity
    _check_entity(entity)
    known = image.quotas.get(entity, {})
    limits = dict(known)
    for name, value in command.limits.items():
        if name not in QUOTA_LIMITS:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"Unknown quota {shown(name)}: use one of {', '.join(QUOTA_LIMITS)}",
            )
        if value is None:
            limits.pop(name, None)
        elif not math.isfinite(value) or value <= 0:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"{name} is {value}, but must be a number above 0, in {QUOTA_LIMITS[name]}",
            )
        else:
            limits[name] = float(value)
    if limits == known:
        return []
    if not known and len(image.quotas) >= QUOTAS_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"The cluster has quotas of {QUOTAS_MAX} entities, which is the limit",
        )
    return [*_raise_level(image), QuotaSet(entity=entity, limits=limits)]


def _check_entity(entity: QuotaEntity) -> None:
    if entity.user is None and entity.client_id is None:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "A quota is for a user, a client id, or both")
    for name in (entity.user or "", entity.client_id or ""):
        if len(name) > QUOTA_NAME_LENGTH_MAX or not name.isprintable():
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"A quota is for names of up to {QUOTA_NAME_LENGTH_MAX} characters without control "
                f"characters, not {shown(name)}",
            )


def create_join_token(command: CreateJoinToken, image: Image) -> list[MetadataRecord]:
    if not 0 < len(command.id) <= JOIN_TOKEN_ID_LENGTH_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"The id of a join token has 1 to {JOIN_TOKEN_ID_LENGTH_MAX} characters",
        )
    if len(command.hash) != JOIN_TOKEN_HASH_BYTES or command.expires_ms <= command.now_ms:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"A join token needs a hash of {JOIN_TOKEN_HASH_BYTES} bytes, and to expire later than "
            "now",
        )
    token = JoinToken(command.id, command.hash, command.expires_ms)
    known = image.join_tokens.get(command.id)
    if known is not None:
        if known.hash == token.hash and known.expires_ms == token.expires_ms:
            # A retry: the token is stored, and the response was lost.
            return []
        raise RefusedError(
            ErrorCode.DUPLICATE_RESOURCE, f"Join token {shown(command.id)} exists already"
        )
    expired = [one.id for one in image.join_tokens.values() if one.expires_ms <= command.now_ms]
    if len(image.join_tokens) - len(expired) >= JOIN_TOKENS_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"The cluster has {JOIN_TOKENS_MAX} join tokens, which is the limit: delete some",
        )
    dropped = [JoinTokenDropped(id=name) for name in expired]
    return [*_raise_level(image), *dropped, JoinTokenSet(token=token)]


def delete_join_token(command: DeleteJoinToken, image: Image) -> list[MetadataRecord]:
    if command.id not in image.join_tokens:
        raise RefusedError(
            ErrorCode.RESOURCE_NOT_FOUND, f"Join token {shown(command.id)} does not exist"
        )
    return [JoinTokenDropped(id=command.id)]


def use_join_token(command: RegisterBroker, image: Image) -> list[MetadataRecord]:
    """One broker per token; the same one may repeat its request until the token expires."""
    if not command.join_token_id:
        return []
    token = image.join_tokens.get(command.join_token_id)
    if token is None or token.expires_ms <= command.now_ms:
        raise RefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, JOIN_TOKEN_REFUSED)
    if token.used_by == command.incarnation:
        return []
    if token.used_by is not None:
        raise RefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, JOIN_TOKEN_REFUSED)
    return [JoinTokenSet(token=replace(token, used_by=command.incarnation))]


def _raise_level(image: Image) -> list[MetadataRecord]:
    if image.feature_level >= SECURITY_LEVEL:
        return []
    for broker in image.brokers.values():
        # It cannot read the record, and would stop at it permanently.
        if broker.feature_level_max < SECURITY_LEVEL:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Broker {broker.id} does not support users, ACLs and quotas: restart it with a "
                "newer version first",
            )
    return [FeatureLevelSet(level=SECURITY_LEVEL)]

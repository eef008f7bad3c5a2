"""Joins a running cluster through one of its members, with retries.

It is retriable if the member is still starting, or its cluster has no leader. A rejection is not:
the error says what to change, and the broker does not start.
"""

import asyncio
import logging
from typing import Final

import msgspec

from moldau.client.errors import (
    ClientError,
    RejectedError,
    TimedOutError,
    UnavailableError,
    UnreachableError,
)
from moldau.model.errors import ConfigError, ErrorCode
from moldau.model.layout import SECRET_FILE
from moldau.model.loopback import is_loopback
from moldau.model.topology import (
    Endpoint,
    JoinChallenge,
    JoinGrant,
    JoinRefusal,
    JoinRequest,
    ProvenJoinRequest,
)
from moldau.security.join_proof import NONCE_BYTES, Transcript, UnsealError, unseal
from moldau.server.cluster_secret import JoinKey, read_local_secret
from moldau.server.machine import Machine, MemberClient

log = logging.getLogger(__name__)

_CALL_SECONDS_MAX: Final = 5.0
"""A stop of the process may have to wait this long for the thread of the request."""
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 2.0
_LOG_SECONDS: Final = 5.0
_TOKEN_HINT: Final = (
    "create one on a member: moldau cluster token create · "
    "pass it on in a file: --set join_token_file=FILE, or in MOLDAU_JOIN_TOKEN"
)
_KEY_HINT: Final = (
    f"the file {SECRET_FILE} in the data directory must be that of the cluster; without the file, "
    "each broker joins with a new token: moldau cluster token create"
)
_encoder: Final = msgspec.json.Encoder()
_content_of: Final = msgspec.msgpack.Decoder(JoinGrant | JoinRefusal).decode


class KeyMissingError(ConfigError):
    """This broker has no key to prove that it may join."""


class ProvenRefusalError(RejectedError):
    """A member that knows the key rejects this broker. Any other rejection may come from a process
    that is not of the cluster."""


async def join_cluster(
    address: Endpoint,
    request: JoinRequest,
    key: JoinKey | None,
    machine: Machine,
    *,
    seconds_max: float,
) -> JoinGrant:
    """Join the cluster of the member at `address`. Raises ConfigError.

    Without a key it must be able to read the secret of the member, on the same machine. Safe to
    repeat: the request identifies the data directory and the process.
    """
    member = machine.member(address, min(_CALL_SECONDS_MAX, seconds_max))
    is_local = is_loopback(address.host)
    deadline = machine.clock.monotonic() + seconds_max
    pause, log_at = _PAUSE_SECONDS_MIN, float("-inf")
    log.info("joining a cluster through %s", address)
    while True:
        try:
            grant = await ask_member(member, request, key, machine, may_read=is_local)
        except (UnreachableError, TimedOutError, UnavailableError) as error:
            now = machine.clock.monotonic()
            if now + pause > deadline:
                raise _timed_out(address, error, seconds_max) from None
            if now >= log_at:
                log_at = now + _LOG_SECONDS
                log.info("not joined yet, retrying for %.0f s: %s", deadline - now, error)
        except ClientError as error:
            raise _rejected(address, error) from None
        else:
            reply = grant.reply
            log.info("joined cluster %s as broker %d", reply.cluster_id, reply.broker_id)
            return grant
        # With jitter: all brokers of a cluster may join through the same member at once.
        await asyncio.sleep(pause * machine.rng.uniform(0.5, 1.0))
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)


async def ask_member(
    member: MemberClient,
    request: JoinRequest,
    key: JoinKey | None,
    machine: Machine,
    *,
    may_read: bool = False,
) -> JoinGrant:
    """One request with a proof, and its reply, which proves the member. Raises ClientError,
    ProvenRefusalError, KeyMissingError."""
    offered = await member.join_challenge()
    if offered.initial_members is not None:
        raise UnavailableError(
            "the broker there has no cluster yet", ErrorCode.BROKER_NOT_AVAILABLE
        )
    if key is None and may_read:
        key = read_local_secret(offered.secret_file)
    if key is None:
        missing = KeyMissingError("this broker needs a token to join the cluster")
        missing.hint = _TOKEN_HINT
        raise missing
    try:
        return await _ask_with(member, request, key, offered, machine)
    except RejectedError as error:
        if key.earlier is None or error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
    # The member does not have the new secret yet. A challenge can be used once.
    offered = await member.join_challenge()
    return await _ask_with(member, request, key.earlier, offered, machine)


async def _ask_with(
    member: MemberClient,
    request: JoinRequest,
    key: JoinKey,
    offered: JoinChallenge,
    machine: Machine,
) -> JoinGrant:
    """Raises ClientError, ProvenRefusalError."""
    transcript = Transcript(
        key.token_id, machine.secret_bytes(NONCE_BYTES), offered.challenge, _encoder.encode(request)
    )
    answer = await member.join(
        ProvenJoinRequest(
            request=transcript.request,
            challenge=transcript.challenge,
            nonce=transcript.nonce,
            proof=key.prove(transcript),
            token_id=transcript.token_id,
        )
    )
    try:
        content: JoinGrant | JoinRefusal = _content_of(unseal(key.value, transcript, answer.sealed))
    except (UnsealError, msgspec.DecodeError):
        raise ClientError(
            "the process there does not know the secret of the cluster",
            hint="is that the HTTP address of a member of the cluster?",
        ) from None
    if isinstance(content, JoinRefusal):
        raise ProvenRefusalError(content.message, content.code)
    return content


def _timed_out(address: Endpoint, error: ClientError, seconds_max: float) -> ConfigError:
    failure = ConfigError(
        f"cannot join a cluster through {address} (join_addr) within {seconds_max:g} s: {error}"
    )
    failure.hint = error.hint
    return failure


def _rejected(address: Endpoint, error: ClientError) -> ConfigError:
    failure = ConfigError(f"{address} (join_addr) rejected this broker: {error}")
    failure.hint = error.hint or "nothing was changed; fix the cause and start again"
    if isinstance(error, RejectedError) and error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        failure.hint = _KEY_HINT
    return failure

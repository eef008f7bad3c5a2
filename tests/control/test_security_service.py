"""Users, ACLs, quotas and join tokens through the metadata of three brokers."""

import hashlib
import secrets
from collections.abc import Awaitable

import pytest
from raft_brokers import PATIENT
from replica_brokers import MetadataCluster
from security_world import credential, rule

from moldau.control.metadata_store import MetadataStore
from moldau.control.security_service import SecurityService
from moldau.metadata.commands import CreateCluster, RegisterBroker
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, TimestampMs
from moldau.security.acl import AclFilter, Operation, Permission
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramMechanism, is_password
from moldau.testing.waiting import until

pytestmark = pytest.mark.inprocess

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
ALICE = QuotaEntity("alice", None)


class HandClock:
    """Wall time that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(self.now)

    def monotonic(self) -> float:
        return self.now / 1000


def service(store: MetadataStore, clock: HandClock | None = None) -> SecurityService:
    return SecurityService(
        metadata=store, clock=clock or HandClock(), random_bytes=secrets.token_bytes
    )


def register(number: int, **fields: object) -> RegisterBroker:
    return RegisterBroker(
        id=BrokerId(number),
        host="h",
        port=1,
        incarnation=f"dir-{number}",
        **fields,  # type: ignore[arg-type]
    )


async def start(cluster: MetadataCluster) -> list[MetadataStore]:
    """The leader's store first."""
    cluster.add_group()
    leader = await cluster.ready()
    await leader.store.submit(CreateCluster(cluster_id="c"))
    for number in cluster.brokers:
        await leader.store.submit(register(number))
    return [leader.store, *(broker.store for broker in await cluster.followers())]


async def code_of(change: Awaitable[object]) -> ErrorCode:
    with pytest.raises(RefusedError) as caught:
        await change
    return caught.value.code


async def test_a_user_made_on_one_broker_is_known_to_all() -> None:
    async with MetadataCluster(3, config=PATIENT, heartbeat_ms=150) as cluster:
        leader, follower, third = [service(store) for store in await start(cluster)]
        await follower.put_password("alice", b"pencil")
        stored = follower.users()["alice"].credentials
        assert set(stored) == {SHA_256, SHA_512}
        assert all(is_password(b"pencil", stored[each], each) for each in stored)
        assert len({one.salt for one in stored.values()}) == 2
        for other in (leader, third):
            await until(lambda other=other: other.users() == follower.users(), "known to all")
        # A new password replaces the old one wholly.
        await leader.put_password("alice", b"other", mechanisms=(SHA_512,))
        changed = leader.users()["alice"].credentials
        assert set(changed) == {SHA_512}
        assert not is_password(b"pencil", changed[SHA_512], SHA_512)
        await leader.put_credential("alice", SHA_256, credential())
        assert set(leader.users()["alice"].credentials) == {SHA_256, SHA_512}
        await leader.delete_credential("alice", SHA_512)
        await leader.delete_user("alice")
        assert not leader.users()
        assert await code_of(leader.delete_user("alice")) is ErrorCode.RESOURCE_NOT_FOUND
        for password, iterations in ((b"", 4096), (b"x" * 1025, 4096), (b"x", 4095), (b"x", 10**7)):
            refused = follower.put_password("bob", password, iterations=iterations)
            assert await code_of(refused) is ErrorCode.UNACCEPTABLE_CREDENTIAL
        assert await code_of(follower.put_password("*", b"x")) is ErrorCode.UNACCEPTABLE_CREDENTIAL


async def test_each_rule_and_each_filter_has_its_own_result() -> None:
    async with MetadataCluster(3, config=PATIENT, heartbeat_ms=150) as cluster:
        leader, follower, _ = [service(store) for store in await start(cluster)]
        read, write = rule(), rule(Operation.WRITE)
        deny = rule(permission=Permission.DENY, principal="User:bob")
        results = await follower.create_acls([read, rule(host="nowhere"), write, deny])
        assert [result and result.code for result in results] == [
            None,
            ErrorCode.INVALID_REQUEST,
            None,
            None,
        ]
        assert follower.acls() == sorted([read, write, deny])
        assert follower.acls(AclFilter(principal="User:bob")) == [deny]
        assert await follower.create_acls([read]) == [None]
        with pytest.raises(RefusedError):
            follower.acls(AclFilter(principal="bob"))
        # A rule that two filters match is reported by both.
        of_alice, reads = AclFilter(principal="User:alice"), AclFilter(operation=Operation.READ)
        invalid = AclFilter(principal="alice")
        unmatched = AclFilter(principal="User:carol")
        first, second, third, fourth = await follower.delete_acls(
            [of_alice, invalid, reads, unmatched]
        )
        assert first == sorted([read, write])
        assert isinstance(second, RefusedError)
        assert third == sorted([read, deny])
        assert fourth == []
        assert not follower.acls()
        assert await leader.delete_acls([AclFilter()]) == [[]]
        assert await leader.delete_acls([]) == []
        assert await leader.create_acls([]) == []


async def test_quotas_are_tried_and_set() -> None:
    async with MetadataCluster(3, config=PATIENT, heartbeat_ms=150) as cluster:
        _, follower, _ = [service(store) for store in await start(cluster)]
        await follower.alter_quotas(ALICE, {"producer_byte_rate": 5}, validate_only=True)
        assert not follower.quotas()
        await follower.alter_quotas(ALICE, {"producer_byte_rate": 5, "request_percentage": 50})
        await follower.alter_quotas(ALICE, {"producer_byte_rate": None})
        assert follower.quotas() == {ALICE: {"request_percentage": 50}}
        for validate_only in (True, False):
            bad = follower.alter_quotas(ALICE, {"speed": 1}, validate_only=validate_only)
            assert await code_of(bad) is ErrorCode.INVALID_REQUEST


@pytest.mark.safety
async def test_a_join_token_is_used_once_and_stored_nowhere() -> None:
    async with MetadataCluster(3, config=PATIENT, heartbeat_ms=150) as cluster:
        stores = await start(cluster)
        clock = HandClock()
        leader, follower = (service(store, clock) for store in stores[:2])
        text, token = await follower.create_join_token(lifetime_ms=60_000)
        assert follower.join_tokens() == [token]
        token_id, _, secret = text.partition(".")
        assert token.id == token_id
        assert secret.encode() not in token.hash
        assert secret not in repr(stores[1].image) + repr(token)
        assert token.hash == hashlib.sha256(secret.encode()).digest()
        other, _ = await leader.create_join_token()
        assert other != text
        await stores[1].submit(register(8, join_token_id=token_id, now_ms=clock.now))
        second = stores[0].submit(register(9, join_token_id=token_id, now_ms=clock.now))
        assert await code_of(second) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert BrokerId(9) not in stores[0].image.brokers


async def test_a_join_token_expires_and_can_be_deleted() -> None:
    async with MetadataCluster(3, config=PATIENT, heartbeat_ms=150) as cluster:
        stores = await start(cluster)
        clock = HandClock()
        leader = service(stores[0], clock)
        _, token = await leader.create_join_token(lifetime_ms=60_000)
        assert token.expires_ms == clock.now + 60_000
        late = register(8, join_token_id=token.id, now_ms=clock.now + 60_000)
        assert await code_of(stores[0].submit(late)) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        await leader.delete_join_token(token.id)
        assert not leader.join_tokens()
        assert await code_of(leader.delete_join_token(token.id)) is ErrorCode.RESOURCE_NOT_FOUND
        for lifetime in (0, -1, 31 * 24 * 60 * 60 * 1000):
            bad = leader.create_join_token(lifetime_ms=lifetime)
            assert await code_of(bad) is ErrorCode.INVALID_REQUEST

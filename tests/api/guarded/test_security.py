"""Users and ACLs: no credential leaves the facade, and the audit log says what was changed."""

import json

from guarded_calls import GuardedWorld, outcome

from moldau.api.session import Session
from moldau.metadata.security import User
from moldau.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from moldau.security.principal import user
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramCredential, ScramMechanism

SECRET = b"planted-secret"
RULE = Acl(
    ResourceType.TOPIC,
    "orders",
    PatternType.PREFIXED,
    "User:bob",
    "10.0.0.0/8",
    Operation.READ,
    Permission.ALLOW,
)


def root(world: GuardedWorld) -> Session:
    return world.session(user("root"))


def about(world: GuardedWorld) -> list[str]:
    return [json.loads(line).get("about", "") for line in world.audited]


def test_users_are_shown_without_their_credentials() -> None:
    world = GuardedWorld()
    credential = ScramCredential(SECRET, 4096, SECRET, SECRET)
    bob = User("bob", {ScramMechanism.SHA_256: credential})
    world.services["security"].answers["users"] = {"bob": bob}
    assert root(world).security.users() == {"bob": {ScramMechanism.SHA_256: 4096}}


def test_the_audit_log_names_the_user_and_not_the_password() -> None:
    world = GuardedWorld()
    outcome(lambda s: s.security.put_password("bob", SECRET), root(world))
    credential = ScramCredential(SECRET, 4096, SECRET, SECRET)
    outcome(
        lambda s: s.security.put_credential("carol", ScramMechanism.SHA_256, credential),
        root(world),
    )
    outcome(lambda s: s.security.delete_user("dave"), root(world))
    assert about(world) == ["user bob", "user carol", "user dave"]
    assert SECRET.decode() not in "".join(world.audited)


def test_the_audit_log_names_rules() -> None:
    world = GuardedWorld()
    outcome(lambda s: s.security.create_acls([RULE]), root(world))
    outcome(lambda s: s.security.delete_acls([AclFilter(principal="User:bob")]), root(world))
    assert about(world) == [
        "ALLOW User:bob READ TOPIC orders PREFIXED 10.0.0.0/8",
        "ANY User:bob ANY ANY (any) ANY (any)",
    ]


def test_the_audit_log_is_bounded_per_request() -> None:
    world = GuardedWorld()
    outcome(lambda s: s.security.create_acls([RULE] * 10_000), root(world))
    assert len(about(world)[0]) <= 2000


def test_the_audit_log_names_brokers_and_quotas() -> None:
    world = GuardedWorld()
    outcome(lambda s: s.cluster.drain(3), root(world))
    limits = {"producer_byte_rate": 10.0}
    outcome(lambda s: s.security.alter_quotas(QuotaEntity("bob", None), limits), root(world))
    drained, changed = about(world)
    assert drained == "broker 3"
    assert "bob" in changed
    assert "producer_byte_rate" in changed

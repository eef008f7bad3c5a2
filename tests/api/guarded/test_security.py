"""Users and ACLs: no credential leaves the facade, and the audit log says what was changed."""

import json

from guarded_calls import GuardedWorld, outcome
from msgspec.structs import replace

from moldau.api.audit import PARTS_MAX
from moldau.api.session import Session
from moldau.metadata.security import User
from moldau.model.errors import ErrorCode, RefusedError
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
    assert [text.partition(":")[0] for text in about(world)] == [
        "user bob",
        "user carol",
        "user dave",
    ]
    assert SECRET.decode() not in "".join(world.audited)


def test_the_audit_log_names_rules() -> None:
    world = GuardedWorld()
    outcome(lambda s: s.security.create_acls([RULE]), root(world))
    outcome(lambda s: s.security.delete_acls([AclFilter(principal="User:bob")]), root(world))
    assert about(world) == [
        "ALLOW User:bob READ TOPIC orders PREFIXED 10.0.0.0/8",
        "ANY User:bob ANY ANY (any) ANY (any)",
    ]


def test_no_rule_hides_another_in_the_audit_log() -> None:
    long = replace(RULE, resource_name="r" * 255, principal="User:" + "u" * 255)
    rules = [replace(long, host=f"10.0.{number}.0/24") for number in range(250)]
    changed = [*rules * 3, RULE]
    filters = [AclFilter(principal=each.principal, host=each.host) for each in changed]
    world = GuardedWorld()
    outcome(lambda s: s.security.create_acls(changed), root(world))
    assert len(about(world)) == len(changed)
    assert [text.split()[-1] for text in about(world)] == [each.host for each in changed]
    assert about(world)[-1] == "ALLOW User:bob READ TOPIC orders PREFIXED 10.0.0.0/8"
    world.audited.clear()
    outcome(lambda s: s.security.delete_acls(filters), root(world))
    assert len(about(world)) == len(changed)
    assert about(world)[-1] == "ANY User:bob ANY ANY (any) ANY 10.0.0.0/8"


def test_more_rules_than_are_logged_are_refused() -> None:
    world = GuardedWorld()
    session = root(world)
    found = outcome(lambda s: s.security.create_acls([RULE] * (PARTS_MAX + 1)), session)
    assert isinstance(found, RefusedError)
    assert found.code is ErrorCode.INVALID_REQUEST
    filters = [AclFilter()] * (PARTS_MAX + 1)
    assert isinstance(outcome(lambda s: s.security.delete_acls(filters), session), RefusedError)
    assert world.touched == []
    outcome(lambda s: s.security.create_acls([RULE] * PARTS_MAX), session)
    assert world.touched == ["security.create_acls"]


def test_rules_that_are_denied_have_one_line() -> None:
    """Anyone can ask for them."""
    world = GuardedWorld()
    outcome(lambda s: s.security.create_acls([RULE] * PARTS_MAX), world.session())
    (text,) = about(world)
    assert text.startswith("ALLOW User:bob READ TOPIC orders PREFIXED 10.0.0.0/8; ALLOW")
    assert text.endswith("; (and 980 more)")
    assert len(text) <= 2000


def test_the_audit_log_names_brokers_and_quotas() -> None:
    world = GuardedWorld()
    outcome(lambda s: s.cluster.drain(3), root(world))
    limits = {"producer_byte_rate": 10.0}
    outcome(lambda s: s.security.alter_quotas(QuotaEntity("bob", None), limits), root(world))
    drained, changed = about(world)
    assert drained == "broker 3"
    assert "bob" in changed
    assert "producer_byte_rate" in changed

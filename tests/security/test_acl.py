"""Which rules match, and that any deny wins."""

from hypothesis import given
from hypothesis import strategies as st
from security_world import rule

from moldau.security.acl import (
    Acl,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    host_matches,
    is_allowed,
)

ORDERS = Resource(ResourceType.TOPIC, "orders")


def allowed(*acls: Acl, operation: Operation = Operation.READ, host: str = "10.0.0.1") -> bool:
    return is_allowed(acls, "User:alice", host, operation, ORDERS)


def test_without_a_rule_nothing_is_allowed():
    assert not allowed()
    assert allowed(rule())


def test_a_rule_is_for_its_resource_only():
    assert not allowed(rule(name="order"))
    assert not allowed(rule(name="orders2"))
    assert not allowed(rule(kind=ResourceType.GROUP))
    assert allowed(rule(name="ord", pattern=PatternType.PREFIXED))
    assert not allowed(rule(name="orders.", pattern=PatternType.PREFIXED))
    assert allowed(rule(name="*"))
    # A prefix is no wildcard: only topics whose names begin with a star.
    assert not allowed(rule(name="*", pattern=PatternType.PREFIXED))


def test_a_rule_is_for_its_principal_only():
    assert not allowed(rule(principal="User:bob"))
    assert not allowed(rule(principal="User:ali"))
    assert allowed(rule(principal="User:*"))


def test_a_host_is_an_address_or_a_block():
    assert allowed(rule(host="10.0.0.1"))
    assert not allowed(rule(host="10.0.0.2"))
    assert allowed(rule(host="10.0.0.0/8"))
    assert not allowed(rule(host="10.1.0.0/16"))
    assert host_matches("10.0.0.0/8", "::ffff:10.0.0.1")
    assert not host_matches("::/0", "10.0.0.1")
    assert not host_matches("nonsense", "10.0.0.1")


def test_read_and_write_imply_describe():
    for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER):
        assert allowed(rule(operation), operation=Operation.DESCRIBE)
    assert not allowed(rule(Operation.DESCRIBE))
    assert allowed(rule(Operation.ALTER_CONFIGS), operation=Operation.DESCRIBE_CONFIGS)


def test_a_deny_implies_nothing():
    denied = rule(Operation.READ, Permission.DENY)
    assert allowed(rule(Operation.WRITE), denied, operation=Operation.DESCRIBE)


concrete = st.sampled_from([each for each in Operation if each > Operation.ALL])
rules = st.lists(
    st.builds(
        rule,
        st.sampled_from([each for each in Operation if each is not Operation.ANY]),
        st.just(Permission.ALLOW),
        name=st.sampled_from(["orders", "ord", "*", "other"]),
        pattern=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
        principal=st.sampled_from(["User:alice", "User:*", "User:bob"]),
    )
)


@given(
    rules,
    rules,
    concrete,
    st.sampled_from(["orders", "ord", "o", "*"]),
    st.sampled_from(["User:alice", "User:*"]),
)
def test_no_allow_overrides_a_deny(before, after, operation, name, principal):
    pattern = PatternType.PREFIXED if name in ("ord", "o") else PatternType.LITERAL
    for denies in (operation, Operation.ALL):
        deny = rule(denies, Permission.DENY, name=name, pattern=pattern, principal=principal)
        assert not allowed(*before, deny, *after, operation=operation)

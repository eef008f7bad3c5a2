"""Which rules match, and that any deny wins."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from security_world import acl_filters, acls, rule

from moldau.security.acl import (
    Acl,
    AclFilter,
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


LITERAL, PREFIXED, MATCH = PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH
EXACT, BEGINNING, ALL_TOPICS = rule(), rule(name="ord", pattern=PREFIXED), rule(name="*")


def found(*, name: str | None = None, pattern: PatternType = PatternType.ANY) -> list[Acl]:
    wanted = AclFilter(resource_name=name, pattern_type=pattern)
    return [acl for acl in (EXACT, BEGINNING, ALL_TOPICS) if wanted.matches(acl)]


def test_a_filter_by_name_is_exact_unless_it_says_match():
    assert found() == [EXACT, BEGINNING, ALL_TOPICS]
    assert found(name="orders") == [EXACT]
    assert found(name="ord") == [BEGINNING]
    assert found(name="ord", pattern=LITERAL) == []
    assert found(pattern=LITERAL) == [EXACT, ALL_TOPICS]
    assert found(pattern=PREFIXED) == [BEGINNING]
    assert found(name="*", pattern=LITERAL) == [ALL_TOPICS]


def test_match_finds_all_rules_for_a_resource():
    assert found(pattern=MATCH) == [EXACT, BEGINNING, ALL_TOPICS]
    assert found(name="orders", pattern=MATCH) == [EXACT, BEGINNING, ALL_TOPICS]
    assert found(name="ord", pattern=MATCH) == [BEGINNING, ALL_TOPICS]
    assert found(name="or", pattern=MATCH) == [ALL_TOPICS]
    assert found(name="*", pattern=MATCH) == [ALL_TOPICS]


def test_the_other_parts_of_a_filter_are_exact():
    deny = rule(permission=Permission.DENY, principal="User:*", host="10.0.0.0/8")
    for field, other in {
        "resource_type": ResourceType.GROUP,
        "principal": "User:alice",
        "host": "10.0.0.1",
        "operation": Operation.WRITE,
        "permission": Permission.ALLOW,
    }.items():
        assert replace(AclFilter(), **{field: getattr(deny, field)}).matches(deny)
        assert not replace(AclFilter(), **{field: other}).matches(deny)


@given(st.sets(acls, max_size=12), acl_filters)
def test_a_filter_finds_what_matches(rules, wanted):
    assert set(wanted.find(rules)) == {acl for acl in rules if wanted.matches(acl)}


@given(st.sets(acls, max_size=5), acls)
def test_a_filter_that_leaves_nothing_open_finds_one_rule(rules, acl):
    fields = {field: getattr(acl, field) for field in acl.__struct_fields__}
    wanted = AclFilter(**fields)
    assert wanted.only() == acl
    assert list(wanted.find({*rules, acl})) == [acl]
    assert not wanted.find(rules - {acl})
    for field in fields:
        opened = replace(wanted, **{field: getattr(AclFilter(), field)})
        assert opened.only() is None
        assert acl in opened.find({*rules, acl})
    assert replace(wanted, pattern_type=PatternType.MATCH).only() is None

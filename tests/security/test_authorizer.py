"""Index and cache decide as the plain reading of the rules does; known mistakes have a name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_world import HOSTS, NAMES, acls, rule

from moldau.security import authorizer
from moldau.security.acl import (
    Acl,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    is_allowed,
)
from moldau.security.authorizer import Authorizer
from moldau.security.principal import ANONYMOUS, Principal, user

ALICE = user("alice")
PREFIXED = PatternType.PREFIXED
DENY = Permission.DENY
CLIENTS = ("10.0.0.1", "192.168.1.1", "::ffff:10.0.0.1", "unix")

principals = st.sampled_from([ALICE, user("bob"), user("*"), ANONYMOUS])
operations = st.sampled_from([each for each in Operation if each > Operation.ALL])


def topic(name: str = "orders") -> Resource:
    return Resource(ResourceType.TOPIC, name)


def allows(
    *rules: Acl, operation: Operation = Operation.READ, name: str = "orders", host: str = "10.0.0.1"
) -> bool:
    return Authorizer(rules, frozenset()).allows(ALICE, host, operation, topic(name))


@given(
    st.lists(acls, max_size=12),
    st.lists(
        st.tuples(principals, st.sampled_from(CLIENTS), operations, st.sampled_from(NAMES)),
        min_size=1,
        max_size=8,
    ),
)
def test_decisions_are_those_of_the_rules(rules, questions):
    one = Authorizer(rules, frozenset())
    for _ in range(2):  # The second time from the cache.
        for principal, host, operation, name in questions:
            expected = is_allowed(rules, str(principal), host, operation, topic(name))
            assert one.allows(principal, host, operation, topic(name)) == expected


@given(st.lists(acls, max_size=12), principals, st.sampled_from(CLIENTS), operations)
def test_something_is_allowed_if_any_name_is(rules, principal, host, operation):
    # A name that begins as a rule's does, and is in no rule, stands for all such names.
    names = [*NAMES, *(f"{name}~" for name in NAMES), "~"]
    expected = any(
        is_allowed(rules, str(principal), host, operation, topic(name))
        for name in names
        if name != "*"
    )
    one = Authorizer(rules, frozenset())
    for _ in range(2):
        assert one.allows_any(principal, host, operation, ResourceType.TOPIC) == expected


def test_a_deny_of_a_prefix_leaves_other_names():
    """Also the prefix that looks like the wildcard."""
    for prefix in ("o", "*"):
        deny = rule(permission=DENY, name=prefix, pattern=PREFIXED)
        one = Authorizer([rule(name="*"), deny], frozenset())
        assert one.allows_any(ALICE, "h", Operation.READ, ResourceType.TOPIC)
        hidden = Authorizer([rule(name=f"{prefix}x"), deny], frozenset())
        assert not hidden.allows_any(ALICE, "h", Operation.READ, ResourceType.TOPIC)


def test_a_deny_is_not_overridden_by_a_more_specific_allow():
    exact = rule()
    for deny in (
        rule(permission=DENY, name="*"),
        rule(permission=DENY, name="o", pattern=PREFIXED),
        rule(permission=DENY, principal="User:*"),
        rule(permission=DENY, host="10.0.0.0/8"),
        rule(Operation.ALL, DENY),
    ):
        assert not allows(exact, deny)
        assert not allows(deny, exact)
    # Nor a deny of one topic by an allow of all.
    assert not allows(rule(Operation.ALL, name="*"), rule(permission=DENY))


def test_a_prefix_is_no_literal_and_a_literal_no_prefix():
    assert not allows(rule(name="ord"))
    assert allows(rule(name="ord", pattern=PREFIXED))
    assert not allows(rule(name="orders.", pattern=PREFIXED))
    assert not allows(rule(name="*", pattern=PREFIXED))
    assert allows(rule(name="*", pattern=PREFIXED), name="*.odd")
    # A literal star is for all; a star within a name is a character.
    assert allows(rule(name="*"))
    assert not allows(rule(name="ord*"))


def test_everyone_is_not_a_principal():
    """User:* in a rule is everyone; a client of that name gets what everyone gets, no more."""
    for_all, for_alice = rule(principal="User:*"), rule(Operation.WRITE)
    one = Authorizer([for_all, for_alice], frozenset())
    star = user("*")
    assert one.allows(star, "h", Operation.READ, topic())
    assert not one.allows(star, "h", Operation.WRITE, topic())
    assert one.allows(ANONYMOUS, "h", Operation.READ, topic())
    # Another type of principal is not a user of the same name.
    assert not one.allows(Principal("Group", "alice"), "h", Operation.WRITE, topic())


def test_rights_on_one_name_are_not_rights_on_another():
    one = Authorizer([rule(name="orders", kind=ResourceType.GROUP), rule(name="a")], frozenset())
    assert one.allows(ALICE, "h", Operation.READ, Resource(ResourceType.GROUP, "orders"))
    assert not one.allows(ALICE, "h", Operation.READ, topic("orders"))
    for name in ("b", "A", "a ", "a.", "", "aa"):
        # Asked before and after: the cache mixes up nothing.
        assert not one.allows(ALICE, "h", Operation.READ, topic(name))
        assert one.allows(ALICE, "h", Operation.READ, topic("a"))
        assert not one.allows(ALICE, "h", Operation.READ, topic(name))


def test_a_decision_is_for_one_host_and_one_operation():
    one = Authorizer([rule(host=HOSTS[2])], frozenset())
    assert one.allows(ALICE, "10.0.0.1", Operation.READ, topic())
    assert not one.allows(ALICE, "11.0.0.1", Operation.READ, topic())
    assert not one.allows(ALICE, "10.0.0.1", Operation.WRITE, topic())


def test_a_super_user_may_do_everything():
    root = user("root")
    one = Authorizer([rule(Operation.ALL, DENY, name="*", principal="User:*")], frozenset({root}))
    assert one.allows(root, "h", Operation.WRITE, topic())
    assert one.allows_any(root, "h", Operation.WRITE, ResourceType.TOPIC)
    assert not one.allows(ALICE, "h", Operation.WRITE, topic())
    assert not one.allows(user("Root"), "h", Operation.WRITE, topic())


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(authorizer, "CACHE_ENTRIES", 10)
    one = Authorizer([rule(name="t1", pattern=PREFIXED)], frozenset())
    for _ in range(3):
        for number in range(100):
            expected = str(number).startswith("1")
            assert one.allows(ALICE, "h", Operation.READ, topic(f"t{number}")) is expected
            assert len(one._recent) + len(one._older) <= 20
    # A name of any length is decided, and a long one not kept.
    assert one.allows(ALICE, "h", Operation.READ, topic("t1" + "x" * 100_000))
    assert all(len(str(key)) < 1000 for key in one._recent)

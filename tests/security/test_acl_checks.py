"""Rules that can be created: as in Kafka, and none that could never match."""

import pytest
from msgspec.structs import replace
from security_world import rule

from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.acl import AclFilter, Operation, PatternType, Permission, ResourceType
from moldau.security.acl_checks import OPERATIONS, check_acl, check_filter, check_host


def refusal(**changes: object) -> str:
    with pytest.raises(RefusedError) as caught:
        check_acl(replace(rule(), **changes))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    return caught.value.message


def test_usual_rules_are_accepted():
    check_acl(rule())
    check_acl(rule(Operation.ALL, Permission.DENY, name="*", principal="User:*"))
    check_acl(rule(name="ord", pattern=PatternType.PREFIXED, host="10.0.0.0/8"))
    check_acl(rule(Operation.ALTER, name="kafka-cluster", kind=ResourceType.CLUSTER))
    # Names from certificates have commas, and equals signs.
    check_acl(rule(principal="User:CN=alice,OU=Sales,C=DE"))


def test_each_resource_has_its_operations():
    for kind in ResourceType:
        name = "kafka-cluster" if kind is ResourceType.CLUSTER else "n"
        known = OPERATIONS.get(kind, frozenset())
        for operation in Operation:
            acl = rule(operation, kind=kind, name=name)
            if operation in known or (known and operation is Operation.ALL):
                check_acl(acl)
            else:
                with pytest.raises(RefusedError):
                    check_acl(acl)
    assert "TOPIC has no operation CLUSTER_ACTION" in refusal(operation=Operation.CLUSTER_ACTION)


def test_what_is_for_filters_is_not_for_rules():
    for changes in (
        {"resource_type": ResourceType.ANY},
        {"pattern_type": PatternType.ANY},
        {"pattern_type": PatternType.MATCH},
        {"operation": Operation.ANY},
        {"permission": Permission.ANY},
    ):
        refusal(**changes)


def test_there_is_one_cluster():
    with pytest.raises(RefusedError, match="the only CLUSTER is 'kafka-cluster'"):
        check_acl(rule(Operation.ALTER, name="mine", kind=ResourceType.CLUSTER))


@pytest.mark.parametrize("name", ["", "a" * 256, "é" * 128])
def test_a_resource_has_a_name_within_bounds(name: str):
    assert "1 to 255 bytes" in refusal(resource_name=name)


@pytest.mark.parametrize(
    "principal", ["", "alice", "User:", ":alice", "Group:staff", "user:alice", "User:a\nb"]
)
def test_a_principal_is_a_user(principal: str):
    refusal(principal=principal)
    refusal(principal="User:" + "a" * 256)


@pytest.mark.parametrize(
    "host", ["*", "10.0.0.1", "10.0.0.0/8", "0.0.0.0/0", "::1", "fe80::/10", "2001:db8::1"]
)
def test_a_host_is_an_address_a_block_or_all(host: str):
    check_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "example.org",
        "10.0.0.1/8",  # Not the first address of its block.
        "10.0.0",
        "10.0.0.0/33",
        "10.0.0.*",
        " 10.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:10.0.0.0/104",
        "fe80::1%eth0",
    ],
)
def test_a_host_that_could_never_match_is_refused(host: str):
    with pytest.raises(RefusedError):
        check_host(host)


def test_a_filter_with_a_typing_error_is_refused():
    check_filter(AclFilter())
    check_filter(AclFilter(principal="User:alice", resource_name="a", host="anything"))
    for bad in (AclFilter(principal="alice"), AclFilter(resource_name="")):
        with pytest.raises(RefusedError):
            check_filter(bad)


def test_long_input_is_shortened_in_errors():
    assert len(refusal(principal="x" * 100_000)) < 300
    assert len(refusal(host="x" * 100_000)) < 300

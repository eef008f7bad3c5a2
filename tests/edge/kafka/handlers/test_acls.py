"""CreateAcls, DescribeAcls and DeleteAcls: each rule and each filter has its own result."""

from typing import Any

from handler_calls import ask
from security_calls import SecurityCalls

from moldau.edge.kafka.handlers import create_acls, delete_acls, describe_acls
from moldau.model.errors import ErrorCode
from moldau.security.acl import Operation, PatternType, Permission, ResourceType
from moldau.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from moldau.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from moldau.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NONE = ErrorCode.NONE
INVALID = ErrorCode.INVALID_REQUEST
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
ANY: dict[str, Any] = {
    "resource_type_filter": ResourceType.ANY,
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": Operation.ANY,
    "permission_type": Permission.ANY,
}


def creation(name: str = "orders", **fields: Any) -> AclCreation:
    given: dict[str, Any] = {
        "resource_type": ResourceType.TOPIC,
        "resource_name": name,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": Permission.ALLOW,
    }
    return AclCreation(**(given | fields))


def create(world: SecurityCalls, *creations: AclCreation, name: str = "admin") -> list[int]:
    request = CreateAclsRequest(creations=list(creations))
    answer = ask(create_acls.API, world.session(name), request, CreateAclsResponse)
    return [result.error_code for result in answer.results]


def describe(
    world: SecurityCalls, *, user: str = "admin", version: int | None = None, **fields: Any
) -> DescribeAclsResponse:
    request = DescribeAclsRequest(**(ANY | fields))
    return ask(describe_acls.API, world.session(user), request, DescribeAclsResponse, version)


def names(answer: DescribeAclsResponse) -> list[str]:
    assert answer.error_code == NONE
    return [resource.resource_name for resource in answer.resources]


def delete(
    world: SecurityCalls, *filters: dict[str, Any], name: str = "admin"
) -> list[DeleteAclsFilterResult]:
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**(ANY | each)) for each in filters])
    answer = ask(delete_acls.API, world.session(name), request, DeleteAclsResponse)
    return answer.filter_results


def test_rules_are_created_listed_by_resource_and_deleted():
    world = SecurityCalls()
    write = creation(operation=Operation.WRITE)
    assert create(world, creation(), write, creation("other")) == [NONE] * 3
    answer = describe(world)
    assert names(answer) == ["orders", "other"]
    assert [acl.operation for acl in answer.resources[0].acls] == [Operation.READ, Operation.WRITE]
    assert names(describe(world, version=1)) == ["orders", "other"]
    (first, second) = delete(
        world, {"resource_name_filter": "orders"}, {"resource_name_filter": "none"}
    )
    assert [acl.operation for acl in first.matching_acls] == [Operation.READ, Operation.WRITE]
    assert second.matching_acls == []
    assert names(describe(world)) == ["other"]


def test_a_rule_that_cannot_be_does_not_keep_out_the_others():
    world = SecurityCalls()
    codes = create(
        world,
        creation("first"),
        creation(resource_type=99),
        creation(operation=Operation.CLUSTER_ACTION),
        creation(principal="alice"),
        creation(host="example.org"),
        creation(resource_pattern_type=PatternType.MATCH),
        creation(permission_type=0),
        creation("last"),
    )
    assert codes == [NONE, *[INVALID] * 6, NONE]
    assert names(describe(world)) == ["first", "last"]


def test_filters_match_as_in_kafka():
    world = SecurityCalls()
    prefixed = creation("ord", resource_pattern_type=PatternType.PREFIXED)
    create(world, creation("orders"), prefixed, creation("*"), creation("other"))
    of_orders: dict[str, Any] = {
        "resource_type_filter": ResourceType.TOPIC,
        "resource_name_filter": "orders",
    }
    matching = describe(world, **of_orders, pattern_type_filter=PatternType.MATCH)
    assert sorted(names(matching)) == ["*", "ord", "orders"]
    literal = describe(world, **of_orders, pattern_type_filter=PatternType.LITERAL)
    assert names(literal) == ["orders"]
    assert names(describe(world, principal_filter="User:bob")) == []


def test_a_filter_with_unknown_numbers_is_refused_and_deletes_nothing():
    world = SecurityCalls()
    create(world, creation())
    assert describe(world, operation=99).error_code == INVALID
    results = delete(world, {"operation": 99}, {"principal_filter": "bob"})
    assert [result.error_code for result in results] == [INVALID, INVALID]
    assert names(describe(world)) == ["orders"]


def test_users_without_rights_neither_see_nor_change_rules():
    world = SecurityCalls()
    create(world, creation())
    answer = describe(world, user="bob")
    assert (answer.error_code, answer.resources) == (REFUSED, [])
    assert create(world, creation("mine", principal="User:bob"), name="bob") == [REFUSED]
    # Not even to find out which rules would be valid.
    assert create(world, creation(resource_type=99), name="bob") == [REFUSED]
    (result,) = delete(world, {}, name="bob")
    assert (result.error_code, result.matching_acls) == (REFUSED, [])
    assert names(describe(world)) == ["orders"]

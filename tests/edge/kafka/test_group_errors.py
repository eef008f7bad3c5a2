"""Groups that another broker coordinates: every API says so, group by group."""

from collections.abc import Sequence

import pytest
from handler_calls import FakeCluster, ask, brokers, facade, image, service

from moldau.api.session import Session
from moldau.edge.kafka.handlers import delete_groups, describe_groups, list_groups
from moldau.groups.results import DescribedGroup, GroupState, ListedGroup
from moldau.model.errors import ErrorCode
from moldau.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from moldau.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse


def describe(group_id: str) -> DescribedGroup:
    if group_id == "mine":
        return DescribedGroup(error=ErrorCode.NONE, state=GroupState.EMPTY)
    return DescribedGroup(error=ErrorCode.NOT_COORDINATOR)


async def delete(group_ids: Sequence[str]) -> dict[str, ErrorCode]:
    return {each: describe(each).error for each in group_ids}


def list_all(states: object, types: object) -> tuple[ErrorCode, list[ListedGroup]]:
    group = ListedGroup(group_id="mine", protocol_type="consumer", state=GroupState.EMPTY)
    return ErrorCode.NONE, [group]


@pytest.fixture
def broker() -> Session:
    groups = service(describe=describe, delete_groups=delete, list_groups=list_all)
    return facade(FakeCluster(image(brokers(1, 2))), groups=groups)


@pytest.mark.parametrize("version", range(7))
def test_describe_groups_refuses_only_those_of_others(broker: Session, version: int) -> None:
    response = ask(
        describe_groups.API,
        broker,
        DescribeGroupsRequest(groups=["mine", "other"]),
        DescribeGroupsResponse,
        version,
    )
    codes = [(group.group_id, group.error_code) for group in response.groups]
    assert codes == [("mine", 0), ("other", ErrorCode.NOT_COORDINATOR)]


@pytest.mark.parametrize("version", range(3))
def test_delete_groups_refuses_only_those_of_others(broker: Session, version: int) -> None:
    response = ask(
        delete_groups.API,
        broker,
        DeleteGroupsRequest(groups_names=["other", "mine"]),
        DeleteGroupsResponse,
        version,
    )
    codes = [(group.group_id, group.error_code) for group in response.results]
    assert codes == [("other", ErrorCode.NOT_COORDINATOR), ("mine", 0)]


@pytest.mark.parametrize("version", range(6))
def test_list_groups_lists_what_is_coordinated_here(broker: Session, version: int) -> None:
    # Clients ask every broker and put the lists together.
    response = ask(list_groups.API, broker, ListGroupsRequest(), ListGroupsResponse, version)
    assert (response.error_code, [group.group_id for group in response.groups]) == (0, ["mine"])

"""FindCoordinator: any broker says which one serves a group, and where that is."""

import asyncio

import pytest
from handler_calls import FakeCluster, ask, brokers, facade, image, service

from moldau.edge.kafka.handlers import find_coordinator
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)

COORDINATORS = {"mine": 1, "other": 2, "gone": 9}


async def look_up(group_id: str) -> BrokerId:
    if group_id not in COORDINATORS:
        raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads its partition")
    return BrokerId(COORDINATORS[group_id])


def find(version: int, *groups: str) -> list[FoundCoordinator]:
    broker = facade(FakeCluster(image(brokers(1, 2))), groups=service(find_coordinator=look_up))
    if version >= 4:
        request = FindCoordinatorRequest(coordinator_keys=list(groups))
        response = ask(find_coordinator.API, broker, request, FindCoordinatorResponse, version)
        return response.coordinators
    found = []
    for group in groups:
        response = ask(
            find_coordinator.API,
            broker,
            FindCoordinatorRequest(key=group),
            FindCoordinatorResponse,
            version,
        )
        found.append(
            FoundCoordinator(
                key=group,
                node_id=response.node_id,
                host=response.host,
                port=response.port,
                error_code=response.error_code,
                error_message=response.error_message,
            )
        )
    return found


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_returned_with_its_own_address(version: int) -> None:
    found = find(version, "mine", "other")
    assert [(each.key, each.node_id, each.host, each.port) for each in found] == [
        ("mine", 1, "host-1", 9001),
        ("other", 2, "host-2", 9002),
    ]
    assert [each.error_code for each in found] == [0, 0]


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("group", ["nobody's", "gone"])
def test_a_group_without_a_coordinator_is_to_be_asked_for_again(version: int, group: str) -> None:
    (found,) = find(version, group)
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (found.node_id, found.host, found.port) == (-1, "", -1)
    if version >= 1:
        assert found.error_message


def test_many_that_have_to_wait_wait_together() -> None:
    meeting = asyncio.Barrier(3)

    async def look_up_together(group_id: str) -> BrokerId:
        async with asyncio.timeout(30):
            await meeting.wait()
        return await look_up("mine")

    broker = facade(
        FakeCluster(image(brokers(1))), groups=service(find_coordinator=look_up_together)
    )
    request = FindCoordinatorRequest(coordinator_keys=["a", "b", "c"])
    response = ask(find_coordinator.API, broker, request, FindCoordinatorResponse, 4)
    assert [(each.key, each.node_id) for each in response.coordinators] == [
        ("a", 1),
        ("b", 1),
        ("c", 1),
    ]

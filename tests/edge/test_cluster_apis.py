"""The broker tells about itself, and hands out producer ids."""

import pytest

from moldau.client.errors import ClientError
from moldau.client.wire.connection import KafkaConnection
from moldau.edge.kafka import authorized_operations as operations
from moldau.edge.kafka.served_apis import APIS
from moldau.model.errors import ErrorCode
from moldau.security import acl
from moldau.testing.broker import Broker
from moldau.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.wire.messages.list_config_resources import ListConfigResourcesRequest

pytestmark = pytest.mark.system


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_every_api_with_its_range(
    connection: KafkaConnection, version: int
) -> None:
    response = connection.request(
        ApiVersionsRequest(client_software_name="test", client_software_version="1"),
        ApiVersionsResponse,
        version,
    )
    assert response.error_code == 0
    assert {api.api_key for api in response.api_keys} == set(APIS)
    if version >= 3:
        # Clients that know it let their epoch rise with every transaction.
        (feature,) = response.finalized_features
        assert (feature.name, feature.max_version_level) == ("transaction.version", 2)
    # Older clients assert it.
    assert all(0 <= api.min_version <= api.max_version for api in response.api_keys)


def test_a_request_that_is_not_served_closes_the_connection(connection: KafkaConnection) -> None:
    request = ListConfigResourcesRequest(resource_types=[])
    with pytest.raises(ClientError):
        connection.send(request, 0)


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_names_the_brokers(
    connection: KafkaConnection, moldau_session_broker: Broker, version: int
) -> None:
    response = connection.request(
        DescribeClusterRequest(include_cluster_authorized_operations=True),
        DescribeClusterResponse,
        version,
    )
    assert response.error_code == 0
    assert response.cluster_id
    assert response.controller_id == 1
    (broker,) = response.brokers
    assert (broker.broker_id, broker.port) == (1, moldau_session_broker.port)
    assert response.cluster_authorized_operations == operations.bits(acl.ON_CLUSTER)


def test_operations_are_returned_only_if_asked_for(connection: KafkaConnection) -> None:
    response = connection.request(
        DescribeClusterRequest(include_cluster_authorized_operations=False),
        DescribeClusterResponse,
    )
    assert response.cluster_authorized_operations == operations.NOT_REQUESTED


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_describe_cluster_refuses_other_endpoints(
    connection: KafkaConnection, endpoint_type: int, code: ErrorCode
) -> None:
    response = connection.request(
        DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=endpoint_type
        ),
        DescribeClusterResponse,
    )
    assert response.error_code == code
    assert response.error_message
    assert response.brokers == []


@pytest.mark.parametrize("version", range(6))
def test_every_idempotent_producer_gets_an_id_of_its_own(
    connection: KafkaConnection, version: int
) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
    first = connection.request(request, InitProducerIdResponse, version)
    second = connection.request(request, InitProducerIdResponse, version)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert 0 <= first.producer_id < second.producer_id


@pytest.mark.parametrize("version", range(3, 6))
def test_a_producer_that_names_its_id_gets_a_fresh_one(
    connection: KafkaConnection, version: int
) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
    given = connection.request(request, InitProducerIdResponse, version).producer_id
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=-1, producer_id=given, producer_epoch=5
    )
    response = connection.request(request, InitProducerIdResponse, version)
    assert (response.error_code, response.producer_epoch) == (0, 0)
    assert response.producer_id > given


def test_an_id_without_its_epoch_is_refused(connection: KafkaConnection) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1, producer_id=3)
    response = connection.request(request, InitProducerIdResponse)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.producer_id == -1


def test_an_empty_transactional_id_is_no_id(connection: KafkaConnection) -> None:
    request = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000)
    response = connection.request(request, InitProducerIdResponse)
    assert response.error_code == ErrorCode.INVALID_REQUEST

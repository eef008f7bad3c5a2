"""DescribeCluster (60): the brokers of the cluster and its id."""

from moldau.edge.kafka.authorized_operations import NOT_REQUESTED, on_cluster
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.partition_leaders import controller_of
from moldau.model.errors import ErrorCode
from moldau.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2
_FENCED_FROM = 2


def handle(call: Call, request: DescribeClusterRequest) -> DescribeClusterResponse:
    cluster = call.session.cluster
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if known
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="Only broker endpoints are supported",
            endpoint_type=request.endpoint_type,
            cluster_id=cluster.cluster_id,
            brokers=[],
        )
    alive = cluster.alive
    return DescribeClusterResponse(
        cluster_id=cluster.cluster_id,
        controller_id=controller_of(call.session),
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.id,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                # Fenced in Kafka: registered, but not alive.
                is_fenced=call.version >= _FENCED_FROM and broker.id not in alive,
            )
            for broker in cluster.brokers.values()
            if request.include_fenced_brokers or broker.id in alive
        ],
        cluster_authorized_operations=on_cluster(call.session)
        if request.include_cluster_authorized_operations
        else NOT_REQUESTED,
    )


API = Api(DescribeClusterRequest, versions=(0, 2), handle=handle)

"""DescribeCluster (60): the brokers of the cluster and its id."""

from moldau.edge.kafka import authorized
from moldau.edge.kafka.api import Api, Call
from moldau.model.errors import ErrorCode
from moldau.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from moldau.wire.registry import ApiKey

_BROKERS, _CONTROLLERS = 1, 2


def handle(call: Call, request: DescribeClusterRequest) -> DescribeClusterResponse:
    image = call.broker.image
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if known
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="This endpoint is one of a broker, and there are no others",
            endpoint_type=request.endpoint_type,
            cluster_id=image.cluster_id,
            brokers=[],
        )
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=call.broker.broker_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in image.brokers.values()
        ],
        cluster_authorized_operations=authorized.ON_CLUSTER
        if request.include_cluster_authorized_operations
        else authorized.NOT_ASKED,
    )


API = Api(
    key=ApiKey.DESCRIBE_CLUSTER, request=DescribeClusterRequest, versions=(0, 2), handle=handle
)

"""DescribeCluster (60): the brokers or controllers of the cluster and its id."""

from moldau.wire.fields import INT32_MIN, array, boolean, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class DescribeClusterRequest(Request, key=60, versions=(0, 2), flexible=0):
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = i8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+", default=False)


class DescribeClusterBroker(Struct):
    broker_id: int = i32()
    host: str = string()
    port: int = i32()
    rack: str | None = string(nullable="0+", default=None)
    is_fenced: bool = boolean("2+", default=False)


class DescribeClusterResponse(Response, key=60, versions=(0, 2), flexible=0):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    endpoint_type: int = i8("1+", default=1)
    cluster_id: str = string()
    controller_id: int = i32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = i32(default=INT32_MIN)

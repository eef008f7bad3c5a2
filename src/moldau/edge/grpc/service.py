"""The service moldau.v1.Queue: the handler of each call."""

from typing import TYPE_CHECKING, Final

from moldau.edge.grpc.calls import Calls
from moldau.edge.grpc.cluster_handlers import ClusterHandlers
from moldau.edge.grpc.consumer_handlers import ConsumerHandlers
from moldau.edge.grpc.read_from import ReadFromHandler
from moldau.edge.grpc.send_handlers import SendHandlers
from moldau.proto.v1 import queue_pb2 as pb

if TYPE_CHECKING:
    from moldau.edge.grpc.calls import Handler

SERVICE: Final[str] = pb.DESCRIPTOR.services_by_name["Queue"].full_name


def handlers(calls: Calls) -> "dict[str, Handler]":
    cluster, sending = ClusterHandlers(), SendHandlers(calls)
    consuming, reading = ConsumerHandlers(calls), ReadFromHandler(calls)
    unary = calls.unary
    return {
        "CreateTopic": unary(pb.CreateTopicRequest, cluster.create_topic),
        "Send": unary(pb.SendRequest, sending.send),
        "SendBatch": calls.stream_stream(pb.SendBatchRequest, sending.send_batch),
        "Connect": unary(pb.ConnectRequest, consuming.connect),
        "Disconnect": unary(pb.DisconnectRequest, consuming.disconnect),
        "Heartbeat": calls.stream_stream(pb.HeartbeatRequest, consuming.heartbeat),
        "Poll": calls.unary_with_call(pb.PollRequest, consuming.poll),
        "Ack": unary(pb.AckRequest, consuming.ack),
        "Nack": unary(pb.NackRequest, consuming.nack),
        "Extend": unary(pb.ExtendRequest, consuming.extend),
        "Stats": unary(pb.StatsRequest, consuming.stats),
        "ListGroups": unary(pb.ListGroupsRequest, consuming.list_groups),
        "Peek": unary(pb.PeekRequest, consuming.peek),
        "DeleteGroup": unary(pb.DeleteGroupRequest, consuming.delete_group),
        "ReadFrom": calls.unary_stream(pb.ReadFromRequest, reading.read_from),
        "Topology": unary(pb.TopologyRequest, cluster.topology),
        "ManageBrokers": unary(pb.ManageBrokersRequest, cluster.manage_brokers),
    }

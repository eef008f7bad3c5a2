"""ElectLeaders (43): request leader elections."""

from moldau.wire.fields import array, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class ElectLeadersTopic(Struct):
    topic: str = string()
    partitions: list[int] = array("i32")


class ElectLeadersRequest(Request, key=43, versions=(0, 2), flexible=2):
    election_type: int = i8("1+", default=0)
    topic_partitions: list[ElectLeadersTopic] | None = array(ElectLeadersTopic, nullable="0+")
    timeout_ms: int = i32(default=60000)


class ElectLeadersPartitionResult(Struct):
    partition_id: int = i32()
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


class ElectLeadersTopicResult(Struct):
    topic: str = string()
    partition_result: list[ElectLeadersPartitionResult] = array(ElectLeadersPartitionResult)


class ElectLeadersResponse(Response, key=43, versions=(0, 2), flexible=2):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16("1+", default=0)
    replica_election_results: list[ElectLeadersTopicResult] = array(ElectLeadersTopicResult)

"""DescribeLogDirs (35): sizes of partitions on disk, and the free space."""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, in_turns
from moldau.model.errors import RefusedError
from moldau.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

_DISK_FROM = 4


@in_turns
def handle(call: Call, request: DescribeLogDirsRequest) -> Steps[DescribeLogDirsResponse]:
    try:
        found = call.session.cluster.log_dirs()
    except RefusedError as error:
        # Older responses have no error, and are just empty, as in Kafka.
        return DescribeLogDirsResponse(error_code=error.code, results=[])
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    topics: dict[str, DescribeLogDirsTopic] = {}
    for replica in found.replicas:
        yield
        name, index = replica.partition
        if wanted is not None and (name, index) not in wanted:
            continue
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = DescribeLogDirsTopic(name=name, partitions=[])
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=index,
                partition_size=replica.size_bytes,
                # A follower may know a high watermark above its own log end.
                offset_lag=max(0, replica.high_watermark - replica.end_offset),
                is_future_key=False,
            )
        )
    result = DescribeLogDirsResult(log_dir=found.path, topics=list(topics.values()))
    if call.version >= _DISK_FROM:
        result.total_bytes = found.total_bytes
        result.usable_bytes = found.free_bytes
    return DescribeLogDirsResponse(results=[result])


API = Api(DescribeLogDirsRequest, versions=(1, 4), handle=handle)

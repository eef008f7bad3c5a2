"""DescribeLogDirs (35): sizes of partitions on disk."""

from moldau.wire.fields import array, boolean, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class DescribeLogDirsRequestTopic(Struct):
    topic: str = string()
    partitions: list[int] = array("i32")


class DescribeLogDirsRequest(Request, key=35, versions=(1, 4), flexible=2):
    topics: list[DescribeLogDirsRequestTopic] | None = array(
        DescribeLogDirsRequestTopic, nullable="0+"
    )


class DescribeLogDirsPartition(Struct):
    partition_index: int = i32()
    partition_size: int = i64()
    offset_lag: int = i64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Struct):
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Struct):
    error_code: int = i16(default=0)
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = i64("4+", default=-1, ignorable=True)
    usable_bytes: int = i64("4+", default=-1, ignorable=True)


class DescribeLogDirsResponse(Response, key=35, versions=(1, 4), flexible=2):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16("3+", default=0, ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)

"""WriteTxnMarkers (27): write the end of transactions into partitions; between brokers."""

from moldau.wire.fields import array, boolean, i8, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class WritableTxnMarkerTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array("i32")


class WritableTxnMarker(Struct):
    producer_id: int = i64()
    producer_epoch: int = i16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = i32()
    transaction_version: int = i8("2+", default=0, ignorable=True)


class WriteTxnMarkersRequest(Request, key=27, versions=(1, 2), flexible=1):
    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = i32()
    error_code: int = i16(default=0)


class WritableTxnMarkerTopicResult(Struct):
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Struct):
    producer_id: int = i64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Response, key=27, versions=(1, 2), flexible=1):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)

"""ElectLeaders (43): moves leadership to the preferred replicas.

Replies when the new leaders lead. Without a list of partitions, all that are not led by their
preferred replica are elected, and those that need no election are left out of the response, as in
Kafka. Unclean elections are rejected: Raft elects a leader as soon as it can without losing data.
"""

from collections.abc import Sequence

from moldau.api.types import ElectionType
from moldau.edge.concurrent_work import run_each
from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.elect_leaders import (
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopicResult,
)

_ELECTIONS = {election.value: election for election in ElectionType}


async def handle(call: Call, request: ElectLeadersRequest) -> ElectLeadersResponse:
    election = _ELECTIONS.get(request.election_type)
    if election is None:
        return ElectLeadersResponse(
            error_code=ErrorCode.INVALID_REQUEST, replica_election_results=[]
        )
    cluster = call.session.cluster
    requested = request.topic_partitions
    if requested is None:
        try:
            wanted = list(cluster.elections_due())
        except RefusedError as error:
            return ElectLeadersResponse(error_code=error.code, replica_election_results=[])
    else:
        # Without duplicates.
        named = ((topic.topic, index) for topic in requested for index in topic.partitions)
        wanted = list(dict.fromkeys(named))
    refusals = await run_each(
        lambda each: cluster.elect(*each, election), wanted, request.timeout_ms
    )
    topics: dict[str, ElectLeadersTopicResult] = {}
    for (name, index), refusal in zip(wanted, refusals, strict=True):
        result = ElectLeadersPartitionResult(partition_id=index)
        if refusal is not None:
            if requested is None and refusal.code is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            result.error_code, result.error_message = refusal.code, str(refusal)
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = ElectLeadersTopicResult(topic=name, partition_result=[])
        topic.partition_result.append(result)
    return ElectLeadersResponse(
        error_code=_refusal_of_all(refusals), replica_election_results=list(topics.values())
    )


def _refusal_of_all(refusals: Sequence[RefusedError | None]) -> ErrorCode:
    """As in Kafka, missing rights on the cluster are also an error of the whole request."""
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if any(each is not None and each.code is refused for each in refusals):
        return refused
    return ErrorCode.NONE


API = Api(
    ElectLeadersRequest,
    versions=(0, 2),
    handle=handle,
    note="unclean elections are rejected: they would lose records",
)

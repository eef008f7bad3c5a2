"""Every Kafka API, asked by a client without rights: nothing is given and nothing changed.

Generated from the table of served APIs: a new API without a sample fails here.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from guarded_calls import ALICE, allow
from handler_calls import Asked
from kafka_refusals import BY_ID, NO_TOPIC, UNKNOWN_ID, WALKS, Walk
from refusal_world import served_versions, world

from harness.virtual_loop import run_virtually
from moldau.api.session import Session
from moldau.edge.kafka.served_apis import APIS
from moldau.groups.results import FetchOffsetsResult
from moldau.model.errors import ErrorCode
from moldau.security.acl import Operation, ResourceType
from moldau.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.wire.registry import ApiKey
from moldau.wire.schema import Response, Struct

CASES = [
    pytest.param(walk, version, id=f"{ApiKey(walk.request.API_KEY).name}-{number}-v{version}")
    for number, walk in enumerate(WALKS)
    if walk.request.API_KEY in APIS
    for version in served_versions(walk)
]
READS = {"groups.list_groups", "transactions.list_transactions", "fetch.fetch"}
"""Lists, which are filtered, and a fetch of a topic id that is hidden."""
AUTHENTICATION = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""They come before there is anyone to have rights."""


def ask(session: Session, walk: Walk, version: int) -> Response:
    async def run() -> Response:
        api = APIS[walk.request.API_KEY]
        asked = Asked(api, session, walk.request, version)
        result = asked.result
        if not isinstance(result, Response) and result is not None:
            result = await result
        if isinstance(result, Response):
            asked.call.reply(result)
        asked.deadlines.stop()
        return asked.answer(Response)

    return run_virtually(run())


def errors_in(part: object) -> Iterator[ErrorCode]:
    """All error codes in a response that are not NONE."""
    if isinstance(part, list):
        for each in part:
            yield from errors_in(each)
    elif isinstance(part, Struct):
        for name in part.FIELDS:
            value: Any = getattr(part, name)
            if name.endswith("error_code"):
                if value:
                    yield ErrorCode(value)
            else:
                yield from errors_in(value)


def test_every_served_api_is_walked() -> None:
    assert APIS.keys() - AUTHENTICATION <= {walk.request.API_KEY for walk in WALKS}


@pytest.mark.parametrize(("walk", "version"), CASES)
def test_a_client_without_rights_gets_nothing_and_changes_nothing(walk: Walk, version: int) -> None:
    made = world()
    response = ask(made.session(ALICE), walk, version)
    expected = list(walk.expects)
    if version >= BY_ID.get(ApiKey(walk.request.API_KEY), 99) and expected == [NO_TOPIC]:
        expected = [UNKNOWN_ID]
    assert list(errors_in(response)) == expected
    if not expected:
        text = repr(response)
        assert not any(name in text for name in ("orders", "billing", "payments"))
    assert set(made.touched) <= READS


def test_a_right_that_comes_while_offsets_are_fetched_does_not_make_them_unset() -> None:
    """A consumer that gets no offset and no error starts from the beginning."""
    made = world()
    made.grant([allow(Operation.DESCRIBE, ResourceType.GROUP, "billing")])

    def fetch_offsets(group_id: str, partitions: Sequence[Any], **_: object) -> FetchOffsetsResult:
        assert list(partitions) == []
        made.grant([allow(Operation.ALL, ResourceType.TOPIC, "orders")])
        return FetchOffsetsResult(error=ErrorCode.NONE, offsets={})

    made.services["groups"].effects["fetch_offsets"] = fetch_offsets
    topics = [OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    request = OffsetFetchRequest(group_id="billing", topics=topics)
    answer = ask(made.session(), Walk(request=request), 5)
    assert list(errors_in(answer)) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]

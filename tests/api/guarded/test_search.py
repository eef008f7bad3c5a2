"""What a session checks beside the rights in the table: rights that end, and quotas."""

from typing import Any

from guarded_calls import GuardedWorld, allow, outcome
from samples import ORDERS
from search_asks import LIVE, SEARCH, stays

from moldau.api.search.live import LiveBatch
from moldau.api.search.types import SearchFound
from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.acl import Operation, ResourceType

TOPIC = ResourceType.TOPIC
FOUND = SearchFound(
    hits=[],
    records=0,
    bytes_searched=0,
    bytes_read=0,
    ranges=[],
    left=0,
    gone=0,
    unreadable=[],
    cursor=None,
)


def test_rights_that_end_meanwhile_count() -> None:
    for service, method, answer, call in (
        ("search", "page", FOUND, lambda s: s.search.page(ORDERS, SEARCH, stays)),
        ("live", "next", LiveBatch([], 0, 0), lambda s: s.search.next_live(ORDERS, None, 0)),
    ):
        made = GuardedWorld()
        read = allow(Operation.READ, TOPIC, "orders")
        for meanwhile in ([read], []):
            made.grant([read])

            def work(
                *_: Any, made: GuardedWorld = made, answer: Any = answer, left: Any = meanwhile
            ) -> Any:
                made.grant(left)
                return answer

            made.services[service].effects[method] = work
            found = outcome(call, made.session())
            assert (found is answer) == bool(meanwhile)
        assert isinstance(found, RefusedError)
        assert found.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_view_needs_the_right_to_read_before_anything_is_followed() -> None:
    made = GuardedWorld()
    made.grant([allow(Operation.DESCRIBE, TOPIC, "orders")])
    found = outcome(lambda s: s.search.live(ORDERS, LIVE), made.session())
    assert isinstance(found, RefusedError)
    assert made.touched == []

"""The way to another broker: to one that lives, and with all that was asked."""

from types import SimpleNamespace

import msgspec
import pytest
from open_sessions import session_over

from moldau.edge.http.redirect import redirect_to
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import Endpoint


def broker_that_knows(host: str = "10.0.0.2", alive=(1, 2)):
    brokers = {
        2: SimpleNamespace(http=Endpoint(host, 8081), listeners=()),
        3: SimpleNamespace(http=None, listeners=()),
    }
    return session_over(
        image=SimpleNamespace(brokers=brokers),
        cluster=SimpleNamespace(alive=frozenset(alive)),
    )


def request_for(path: bytes = b"/api/v1/groups/a%2Fb%20c", query: bytes = b"after=x%2F1"):
    return SimpleNamespace(
        scope={"scheme": "http", "raw_path": path, "path": "/no", "query_string": query}
    )


@pytest.mark.parametrize(
    ("host", "written"), [("10.0.0.2", "10.0.0.2"), ("::1", "[::1]")], ids=["IPv4", "IPv6"]
)
def test_what_was_quoted_stays_quoted(host, written):
    reply = redirect_to(broker_that_knows(host), 2, request_for())
    target = f"http://{written}:8081/api/v1/groups/a%2Fb%20c?after=x%2F1"
    assert (reply.status_code, reply.headers["location"]) == (307, target)
    assert msgspec.json.decode(reply.body) == {"broker": 2, "location": target}


def test_no_client_is_redirected_to_a_dead_broker():
    """The client would meet a closed port, and not know that it has to come again."""
    with pytest.raises(RefusedError) as refused:
        redirect_to(broker_that_knows(alive=(1,)), 2, request_for())
    assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE


@pytest.mark.parametrize("other", [3, 4], ids=["without HTTP", "unknown"])
def test_who_has_no_address_cannot_be_asked(other):
    with pytest.raises(RefusedError) as refused:
        redirect_to(broker_that_knows(alive=(3, 4)), other, request_for())
    assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE

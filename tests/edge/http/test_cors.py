"""Which requests of web pages are served: a table of what browsers send."""

import pytest

from moldau.edge.http.cors import Cors
from moldau.edge.http.hosts import Hosts

PAGE = "https://page.example"
WRITES = ("POST", "PUT", "DELETE", "PATCH", "BREW")
READS = ("GET", "HEAD")


def scope(method: str, host: str = "localhost:8080", scheme: str = "http", **headers: str):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"host": host, **named}
    return {
        "type": "http",
        "method": method,
        "scheme": scheme,
        "path": "/",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }


def is_served(method: str, origins=(), **rest: str) -> bool:
    reply = Cors(origins).refusal(scope(method, **rest))
    assert reply is None or reply.status_code == 403
    return reply is None


@pytest.mark.parametrize("method", [*READS, *WRITES])
def test_programs_are_served(method):
    assert is_served(method)


@pytest.mark.parametrize("method", [*READS, *WRITES, "OPTIONS"])
@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:3000", "http://[", ""])
def test_pages_of_other_origins_are_refused(method, origin):
    assert not is_served(method, origin=origin)
    assert not is_served(method, origin=origin, sec_fetch_site="cross-site")
    assert not is_served(method, origins=["https://other.example"], origin=origin)
    # A page of another port of this machine is of the same site, but not of the same origin.
    assert not is_served(method, origin=origin, sec_fetch_site="same-site")


@pytest.mark.parametrize("method", [*READS, *WRITES])
def test_pages_that_are_allowed_are_served(method):
    for origins in ([PAGE], ["*"]):
        assert is_served(method, origins=origins, origin=PAGE, sec_fetch_site="cross-site")


@pytest.mark.parametrize("method", [*READS, *WRITES])
def test_pages_of_the_broker_itself_are_served(method):
    assert is_served(method, origin="http://localhost:8080")
    assert is_served(method, origin="http://localhost:8080", sec_fetch_site="same-origin")
    assert is_served(method, host="b.example", scheme="https", origin="https://B.example:443")
    # Behind a proxy that ends TLS.
    assert is_served(method, origin="https://localhost:8080", sec_fetch_site="same-origin")
    assert not is_served(method, origin="https://localhost:8080")
    assert not is_served(method, origin="http://localhost")


def test_what_a_page_embeds_is_refused():
    for dest in ("image", "script", "style", "empty", "object"):
        rest = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": dest}
        assert not is_served("GET", **rest)
    frame = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}
    assert not is_served("GET", sec_fetch_site="cross-site", **frame)
    assert not is_served("GET", sec_fetch_site="unheard-of")


def test_a_link_may_be_followed_but_no_form_sent():
    link = {
        "sec_fetch_site": "cross-site",
        "sec_fetch_mode": "navigate",
        "sec_fetch_dest": "document",
    }
    assert is_served("GET", **link)
    assert not is_served("POST", **link)
    assert not is_served("POST", origin="null", **link)
    assert is_served("GET", sec_fetch_site="none", sec_fetch_mode="navigate")


def test_only_named_origins_may_send_credentials():
    asked = scope("OPTIONS", origin=PAGE, access_control_request_method="POST")
    named, everybody = Cors([PAGE]).preflight(asked), Cors(["*"]).preflight(asked)
    assert named is not None
    assert everybody is not None
    assert "authorization" in named.headers["access-control-allow-headers"]
    assert "authorization" not in everybody.headers["access-control-allow-headers"]
    for reply in (named, everybody):
        assert "access-control-allow-credentials" not in reply.headers


def test_a_rebound_page_is_of_the_same_origin_and_refused_by_its_host():
    rebound = scope(
        "GET", host="evil.example:8080", origin="http://evil.example:8080", sec_fetch_site="none"
    )
    assert Cors().refusal(rebound) is None
    reply = Hosts().refusal(rebound)
    assert reply is not None
    assert reply.status_code == 421

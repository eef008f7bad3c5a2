"""What HTTP clients say that they are."""

import pytest

from moldau.edge.http.client_connections import ConnectionTraffic, software_of

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"
CHROME = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/126.0.0.0 Safari/537.36"
)


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("", ("", "")),
        ("curl/8.5.0", ("curl", "8.5.0")),
        ("python-requests/2.32", ("python-requests", "2.32")),
        ("my own tool", ("my own tool", "")),
        (FIREFOX, ("Firefox", "128.0")),
        (CHROME, ("Chrome", "126.0.0.0")),
        (f"{CHROME} Edg/126.0", ("Edg", "126.0")),
    ],
)
def test_name_and_version_are_found(agent: str, expected: tuple[str, str]) -> None:
    assert software_of(agent) == expected


def test_requests_are_counted_and_the_first_agent_is_kept_in_part() -> None:
    traffic = ConnectionTraffic("192.0.2.1:1", 10.0)
    traffic.asked({"headers": [(b"user-agent", b"a" * 5000)]})
    traffic.asked({"headers": [(b"user-agent", b"other")]})
    traffic.sent({"type": "http.response.start", "headers": [(b"ab", b"cd")]})
    traffic.sent({"type": "http.response.body", "body": b"12345"})
    traffic.answered(200)
    traffic.answered(404)
    traffic.active_at = 12.0
    shown = traffic.shown("http", 15.0, 100_000)
    assert (shown.requests, shown.errors, shown.bytes_out) == (2, 1, 13)
    assert (shown.opened_at_ms, shown.idle_ms) == (95_000, 3000)
    assert len(shown.software) == 255

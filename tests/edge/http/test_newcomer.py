"""What a broker without a cluster answers: JSON to programs, a page that waits to a browser."""

from typing import Any

import pytest
from starlette.types import Message

from moldau.edge.http.newcomer import build_newcomer_app

pytestmark = pytest.mark.inprocess


async def ask(path: str, accept: str = "*/*") -> tuple[int, dict[str, str], str]:
    app = build_newcomer_app("a:1", ["a:1", "b:1"], True, lambda: "waiting for <b:1>")
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"accept", accept.encode())],
    }
    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, sent[1]["body"].decode()


async def test_a_browser_gets_a_page_that_tries_again() -> None:
    for path in ("/", "/ui/", "/ui/topics"):
        status, headers, body = await ask(path, "text/html")
        assert (status, headers["refresh"], headers["retry-after"]) == (503, "2", "1")
        assert headers["content-type"].startswith("text/html")
        assert "waiting for &lt;b:1&gt;" in body


async def test_programs_get_json() -> None:
    for path in ("/", "/api/v1/topology"):
        status, headers, body = await ask(path)
        assert (status, headers["content-type"]) == (503, "application/problem+json")
        assert "waiting for <b:1>" in body

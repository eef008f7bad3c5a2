"""Asks a real broker over HTTP, as a program would."""

import json
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from moldau.testing.waiting import wait_seconds_max

REDIRECTS_MAX = 5


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


def ask(
    address: str,
    method: str,
    path: str,
    body: object = None,
    *,
    follows: bool = True,
    raw: bytes | None = None,
) -> Reply:
    """One request, with `body` as JSON or `raw` as it is; a redirection is followed."""
    for _ in range(REDIRECTS_MAX):
        connection = HTTPConnection(address, timeout=wait_seconds_max())
        try:
            sent = raw if raw is not None or body is None else json.dumps(body).encode()
            headers = {} if sent is None else {"content-type": "application/json"}
            connection.request(method, path, body=sent, headers=headers)
            response = connection.getresponse()
            data = response.read()
            names = {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()
        if response.status != 307 or not follows:
            break
        target = urlsplit(names["location"])
        address = target.netloc
        path = target.path + (f"?{target.query}" if target.query else "")
    if data:
        wanted = "application/problem+json" if response.status >= 400 else "application/json"
        assert names["content-type"] == wanted
    return Reply(response.status, names, json.loads(data) if data else None)

"""Asks a real broker over HTTP, as a program would."""

import json
from http.client import HTTPConnection
from typing import Any, NamedTuple

from moldau.testing.waiting import wait_seconds_max


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
    raw: bytes | None = None,
) -> Reply:
    """One request, with `body` as JSON or `raw` as it is."""
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
    if data:
        wanted = "application/problem+json" if response.status >= 400 else "application/json"
        assert names["content-type"] == wanted
    return Reply(response.status, names, json.loads(data) if data else None)

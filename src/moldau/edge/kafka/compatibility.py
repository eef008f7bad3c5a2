"""Generates the tables of served Kafka APIs, from the handlers, and of clients that log in.

Run as a program, it writes `docs/reference/compatibility.md`, or the given file.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from moldau.edge.kafka.handler import Api
from moldau.edge.kafka.served_apis import APIS
from moldau.wire.registry import ApiKey

DOCUMENT = Path("docs/reference/compatibility.md")

_HEAD = """\
# Kafka APIs that the broker serves

Generated from the handlers by `python -m moldau.edge.kafka.compatibility`; do not edit.

A client sends ApiVersions first and uses the newest version that both sides support. *Served* are
the versions that the broker handles; *advertised* are those in its ApiVersions response, which
differ only where an old client needs it.

"""
_NOT_SERVED = """
## Not served

The broker does not advertise these APIs; it closes the connection on such a request, as Kafka does.

"""
_CLIENTS = """
## Clients over TLS

Tested unmodified: each client by each SASL mechanism over TLS and by a certificate (mTLS), with
rights, without them (Java's: by SCRAM-SHA-512 and mTLS), and with wrong credentials; by
SCRAM-SHA-512 and mTLS also while the broker gets a new certificate. Java's clients are tested on
request; with them, `kafka-acls` and `kafka-configs` manage rules, passwords, quotas and topics.

"""
LOGINS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "mTLS")
JAVA: Final = "Java's console clients"
TESTED_CLIENTS: Final = {
    "confluent-kafka": "",
    "kafka-python": "a consumer logs that it may not see a topic, and raises nothing",
    "aiokafka": "a refused certificate is a closed connection; an expired session, a new one",
    JAVA: "on request",
}
"""Names and notes; a test compares them with the clients that are tested."""


def render(apis: Iterable[Api]) -> str:
    served = sorted(apis, key=lambda api: api.key)
    rows: list[tuple[str, ...]] = [("API", "Key", "Served", "Advertised", "Note")]
    rows += [
        (
            api.key.title,
            str(int(api.key)),
            _range(*api.versions),
            _range(
                api.versions[0] if api.advertised_from is None else api.advertised_from,
                api.versions[1],
            ),
            api.note,
        )
        for api in served
    ]
    keys = {int(api.key) for api in served}
    missing = [f"- {key.title} ({int(key)})" for key in sorted(ApiKey) if int(key) not in keys]
    return _HEAD + _table(rows) + _NOT_SERVED + "\n".join(missing) + "\n" + _clients()


def _clients() -> str:
    rows: list[tuple[str, ...]] = [("Client", *LOGINS, "Note")]
    rows += [(name, *("yes" for _ in LOGINS), note) for name, note in TESTED_CLIENTS.items()]
    return _CLIENTS + _table(rows)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    path = Path(arguments[0]) if arguments else DOCUMENT
    path.write_text(render(APIS.values()), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Text of users: filters, templates, positions, patterns, configuration files, login settings.

None of it may lead to code, to a pattern that never ends, or to an error without a next step.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fuzz.parts import join, pair
from fuzz.target import Target, check
from moldau.cli.errors import CommandError
from moldau.cli.messages.filter_terms import FilteredMessage
from moldau.cli.messages.filters import parse_filter
from moldau.cli.messages.formats import json_formatter, template_formatter
from moldau.cli.start_position import parse_position
from moldau.client.errors import ClientError
from moldau.client.sasl import parse_sasl
from moldau.groups.consumer.patterns import Budget, Pattern, PatternError
from moldau.model.delivery_tokens import decode_delivery_token, encode_delivery_token
from moldau.model.errors import ConfigError
from moldau.server.config.load import load_config
from moldau.spark.source.java_pattern import python_pattern

_EXTENSIONS: Final = (".yaml", ".toml", ".json", ".ini", ".env", ".properties")
_NAMES: Final = ("a", "orders.eu", "__consumer_offsets", "x" * 249)


class _Message:
    """A message of a consumer, as filters and formatters read it."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 1

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_790_000_000_000

    def key(self) -> bytes | None:
        return self._value[:4] or None

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [("h", self._value[:8]), ("n", None)]


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _filter(data: bytes) -> None:
    text, value = pair(data)
    predicate = parse_filter(_text(text))
    found = predicate.matches(FilteredMessage(_Message(value)))
    check(isinstance(found, bool), "a filter is neither true nor false")


def _format(data: bytes) -> None:
    template, value = pair(data)
    message: Any = _Message(value)
    json_formatter(message)
    template_formatter(_text(template))(message)


def _position(data: bytes) -> None:
    parse_position(_text(data))


def _match(data: bytes) -> None:
    """Patterns of consumer groups run on the broker: their work has a budget."""
    pattern = Pattern(_text(data))
    pattern.matching(_NAMES, Budget(len(_NAMES)))


def _translate(data: bytes) -> None:
    python_pattern(_text(data), "subscribePattern")


def _configure(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"moldau{_EXTENSIONS[data[0] % len(_EXTENSIONS) if data else 0]}"
        path.write_bytes(data[1:])
        load_config({}, {}, str(path))


def _login(data: bytes) -> None:
    mechanism, settings = pair(data)
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": _text(mechanism),
        "sasl.jaas.config": _text(settings),
    }
    parse_sasl(given)


def _token(data: bytes) -> None:
    found = decode_delivery_token(data)
    if found is not None:
        check(encode_delivery_token(found) == data, "a token changes when it is encoded again")


_FILTERS: Final = {
    "both": '(.amount > 5 and not header.h ~ "^a+$") or key = null',
    "index": ".items[0].name != 'x' && timestamp >= @2026-11-15T08:00",
    "pattern": "value ~ '(a|b)*c'",
}
_CONFIGS: Final = (
    "broker_id: 1\nkafka:\n  addr: 127.0.0.1:9092\nlog: {flush: always}\n",
    'broker_id = 1\n[kafka]\naddr = "127.0.0.1:9092"\n',
    '{"broker_id": 1, "kafka": {"addr": "127.0.0.1:9092"}}',
    "broker_id = 1\n[kafka]\naddr = 127.0.0.1:9092\n",
    "MOLDAU_BROKER_ID=1\nexport MOLDAU_KAFKA__ADDR='127.0.0.1:9092' # x\n",
    "broker_id=1\nkafka.addr=127.0.0.1:9092\n",
)


def _config_seeds() -> Iterator[tuple[str, bytes]]:
    for number, text in enumerate(_CONFIGS):
        yield _EXTENSIONS[number][1:], bytes((number,)) + text.encode()


def _login_seeds() -> Iterator[tuple[str, bytes]]:
    module = "org.apache.kafka.common.security"
    scram = f'{module}.scram.ScramLoginModule required username="a" password="b\\"c";'
    plain = f"{module}.plain.PlainLoginModule required username='a' password='b';"
    yield "scram", join([b"SCRAM-SHA-256", scram.encode()])
    yield "plain", join([b"PLAIN", plain.encode()])


TARGETS: Final = [
    Target(
        name="text-filters",
        about="filters of the command line",
        run=_filter,
        allowed=(CommandError,),
        seeds=lambda: {
            name: join([text.encode(), b'{"amount":7,"items":[{"name":"y"}]}'])
            for name, text in _FILTERS.items()
        },
        bytes_max=1024,
    ),
    Target(
        name="text-templates",
        about="templates and JSON of printed messages",
        run=_format,
        allowed=(CommandError,),
        seeds=lambda: {"all": join([b"%t %p %o %k %s\\n\\x41", b'{"a":1}'])},
        bytes_max=1024,
    ),
    Target(
        name="text-positions",
        about="positions of the command line",
        run=_position,
        allowed=(),
        seeds=lambda: {"time": b"@2026-11-15T08:00", "ago": b"@-10m", "last": b"-5"},
        bytes_max=128,
    ),
    Target(
        name="text-patterns",
        about="patterns of consumer groups",
        run=_match,
        allowed=(PatternError,),
        seeds=lambda: {
            "class": b"^(orders|a)\\.[a-z]{1,3}$",
            "nested": b"((a*)*)*b",
            "options": b"(?i:A)[[:alpha:]]+\\pL",
        },
        bytes_max=256,
    ),
    Target(
        name="text-javapatterns",
        about="patterns of Spark options",
        run=_translate,
        allowed=(ClientError,),
        seeds=lambda: {"plain": b"(?i)orders-[0-9]+\\.\\p{Alpha}{2,}"},
        bytes_max=256,
    ),
    Target(
        name="text-config",
        about="configuration files of all formats",
        run=_configure,
        allowed=(ConfigError,),
        seeds=_config_seeds,
        bytes_max=1024,
    ),
    Target(
        name="text-logins",
        about="login settings of clients",
        run=_login,
        allowed=(ClientError,),
        seeds=_login_seeds,
        bytes_max=1024,
    ),
    Target(
        name="text-tokens",
        about="delivery tokens of queues",
        run=_token,
        allowed=(),
        seeds=lambda: {"token": b"\x02" + bytes(20) + b"rest"},
        bytes_max=256,
    ),
]

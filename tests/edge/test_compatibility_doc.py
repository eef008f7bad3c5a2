"""The compatibility table and the handlers say the same."""

from pathlib import Path

from moldau.edge.kafka.compatibility import DOCUMENT, render
from moldau.edge.kafka.served_apis import APIS
from moldau.wire.registry import APIS as KNOWN_APIS
from moldau.wire.registry import ApiKey

_ROOT = Path(__file__).parents[2]


def test_the_committed_table_is_what_the_handlers_declare() -> None:
    written = (_ROOT / DOCUMENT).read_text(encoding="utf-8")
    assert written == render(APIS.values()), "run: python -m moldau.edge.kafka.compatibility"


def test_no_handler_declares_versions_that_its_messages_do_not_have() -> None:
    for key, api in APIS.items():
        first, last = api.versions
        known = KNOWN_APIS[key].versions
        assert known.first <= first <= last <= known.last, api.key.name
        assert key == api.request.API_KEY


def test_what_is_not_there_yet_is_not_advertised() -> None:
    # A client that sees one of these takes the whole feature for there.
    hidden = {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    }
    assert not hidden & {api.key for api in APIS.values()}

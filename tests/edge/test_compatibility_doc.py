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


def test_a_feature_is_advertised_as_a_whole() -> None:
    # A client that sees one of these takes the whole feature for there.
    served = {api.key for api in APIS.values()}
    for feature in (
        {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE},
        {ApiKey.CREATE_ACLS, ApiKey.DESCRIBE_ACLS, ApiKey.DELETE_ACLS},
        {ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS},
        {ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.DESCRIBE_CLIENT_QUOTAS},
    ):
        assert feature <= served or not feature & served

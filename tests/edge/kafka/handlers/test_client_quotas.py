"""AlterClientQuotas and DescribeClientQuotas: per user, client id, both, or all others."""

import pytest
from handler_calls import ask
from security_calls import SecurityCalls

from moldau.edge.kafka.handlers import alter_client_quotas, describe_client_quotas
from moldau.model.errors import ErrorCode
from moldau.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotasEntity,
    AlterQuotasEntry,
    AlterQuotasOperation,
)
from moldau.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeQuotasComponent,
)

EXACT, DEFAULT, ANY = 0, 1, 2
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
Entity = tuple[tuple[str, str | None], ...]

ALICE: Entity = (("user", "alice"),)
EVERY_USER: Entity = (("user", None),)
ALICE_APP: Entity = (("user", "alice"), ("client-id", "app"))
APP: Entity = (("client-id", "app"),)


def alter(
    world: SecurityCalls,
    entity: Entity,
    name: str = "admin",
    *,
    validate_only: bool = False,
    version: int | None = None,
    **limits: float | None,
) -> int:
    entry = AlterQuotasEntry(
        entity=[AlterQuotasEntity(entity_type=kind, entity_name=each) for kind, each in entity],
        ops=[
            AlterQuotasOperation(key=key, value=value or 0.0, remove=value is None)
            for key, value in limits.items()
        ],
    )
    request = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
    answer = ask(
        alter_client_quotas.API, world.session(name), request, AlterClientQuotasResponse, version
    )
    (result,) = answer.entries
    assert tuple((each.entity_type, each.entity_name) for each in result.entity) == entity
    return result.error_code


def describe(
    world: SecurityCalls,
    *components: tuple[str, int, str | None],
    strict: bool = False,
    name: str = "admin",
) -> DescribeClientQuotasResponse:
    request = DescribeClientQuotasRequest(
        components=[
            DescribeQuotasComponent(entity_type=kind, match_type=match, match=value)
            for kind, match, value in components
        ],
        strict=strict,
    )
    return ask(
        describe_client_quotas.API, world.session(name), request, DescribeClientQuotasResponse
    )


def entities(answer: DescribeClientQuotasResponse) -> set[Entity]:
    assert answer.error_code == 0
    return {
        tuple((each.entity_type, each.entity_name) for each in entry.entity)
        for entry in answer.entries or ()
    }


@pytest.fixture
def world() -> SecurityCalls:
    made = SecurityCalls()
    for entity in (ALICE, EVERY_USER, ALICE_APP, APP):
        assert alter(made, entity, producer_byte_rate=1000.0) == 0
    return made


def test_quotas_are_set_shown_and_removed(world: SecurityCalls):
    assert alter(world, ALICE, consumer_byte_rate=5.5, version=0) == 0
    (entry,) = describe(world, ("user", EXACT, "alice"), strict=True).entries or []
    assert [(each.key, each.value) for each in entry.values] == [
        ("consumer_byte_rate", 5.5),
        ("producer_byte_rate", 1000.0),
    ]
    assert alter(world, ALICE, consumer_byte_rate=None, producer_byte_rate=None) == 0
    assert ALICE not in entities(describe(world))


def test_filters_match_as_in_kafka(world: SecurityCalls):
    assert entities(describe(world)) == {ALICE, EVERY_USER, ALICE_APP, APP}
    assert entities(describe(world, strict=True)) == set()
    assert entities(describe(world, ("user", EXACT, "alice"))) == {ALICE, ALICE_APP}
    assert entities(describe(world, ("user", EXACT, "alice"), strict=True)) == {ALICE}
    assert entities(describe(world, ("user", DEFAULT, None))) == {EVERY_USER}
    every_user = {ALICE, EVERY_USER, ALICE_APP}
    assert entities(describe(world, ("user", ANY, None))) == every_user
    both = (("user", ANY, None), ("client-id", EXACT, "app"))
    assert entities(describe(world, *both)) == {ALICE_APP}


def test_a_dry_run_checks_and_changes_nothing(world: SecurityCalls):
    before = world.store.image.quotas
    assert alter(world, ALICE, validate_only=True, producer_byte_rate=7.0) == 0
    invalid = alter(world, ALICE, validate_only=True, producer_byte_rate=-1.0)
    assert invalid == ErrorCode.INVALID_REQUEST
    assert world.store.image.quotas is before


def test_invalid_requests_are_refused(world: SecurityCalls):
    before = world.store.image.quotas
    invalid = ErrorCode.INVALID_REQUEST
    assert alter(world, (), producer_byte_rate=1.0) == invalid
    assert alter(world, (("user", ""),), producer_byte_rate=1.0) == invalid
    assert alter(world, (*ALICE, *EVERY_USER), producer_byte_rate=1.0) == invalid
    assert alter(world, (("ip", "10.0.0.1"),), rate=1.0) == ErrorCode.UNSUPPORTED_VERSION
    assert alter(world, ALICE, unknown_rate=1.0) == invalid
    assert describe(world, ("user", EXACT, None)).error_code == invalid
    assert describe(world, ("user", 7, None)).error_code == invalid
    assert describe(world, ("user", ANY, None), ("user", ANY, None)).error_code == invalid
    assert describe(world, ("ip", ANY, None)).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert world.store.image.quotas is before


def test_users_without_rights_neither_see_nor_change_quotas(world: SecurityCalls):
    before = world.store.image.quotas
    assert alter(world, ALICE, "bob", producer_byte_rate=1.0) == REFUSED
    assert alter(world, ALICE, "bob", validate_only=True, producer_byte_rate=1.0) == REFUSED
    answer = describe(world, name="bob")
    assert (answer.error_code, answer.entries) == (REFUSED, None)
    assert world.store.image.quotas is before

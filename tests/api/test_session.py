"""Sessions: shared by the requests of a client, and up to date with the ACLs."""

import pytest
from guarded_calls import ALICE, HOST, GuardedWorld, allow, outcome

from moldau.api.audit import LOGGER_NAME
from moldau.api.guard import ListenerAccess
from moldau.api.session import SESSIONS_MAX, Sessions
from moldau.model.errors import RefusedError
from moldau.security.acl import Operation, PatternType, Permission, ResourceType
from moldau.security.principal import ANONYMOUS, user

TOPIC = ResourceType.TOPIC


def test_a_client_has_one_session_per_principal_address_and_listener() -> None:
    sessions = GuardedWorld().sessions
    session = sessions.session(ALICE, HOST)
    assert session is sessions.session(user("alice"), HOST)
    others = [
        sessions.session(user("bob"), HOST),
        sessions.session(ALICE, "192.0.2.8"),
        sessions.session(ALICE, HOST, listener=ListenerAccess(read_only=True)),
        sessions.session(ALICE, HOST, listener=ListenerAccess(public_metrics=True)),
    ]
    assert len({id(each) for each in (session, *others)}) == 5
    assert (session.principal, session.host, session.read_only) == (ALICE, HOST, False)
    assert others[2].read_only
    assert sessions.anonymous(HOST).principal == ANONYMOUS


def test_the_number_of_kept_sessions_is_bounded() -> None:
    sessions = GuardedWorld().sessions
    first = sessions.session(ALICE, HOST)
    for number in range(SESSIONS_MAX):
        sessions.session(ALICE, f"2001:db8::{number:x}")
    assert sessions.session(ALICE, HOST) is not first


def test_without_authorisation_everything_is_allowed_and_nothing_audited() -> None:
    world = GuardedWorld()
    session = Sessions(world.broker).anonymous(HOST)
    assert session.produce is world.broker.produce
    assert not isinstance(outcome(lambda s: s.topics.delete(name="orders"), session), RefusedError)
    assert session.may(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert world.audited == []


def append(world: GuardedWorld) -> bool:
    """Whether it is allowed, by the same session each time."""
    call = lambda s: s.produce.append("orders", 0, memoryview(b""), -1)  # noqa: E731
    return not isinstance(outcome(call, world.session()), RefusedError)


def test_a_change_of_acls_counts_from_the_next_request_on() -> None:
    world = GuardedWorld()
    writes = allow(Operation.WRITE, TOPIC, "orders")
    assert not append(world)
    world.grant([writes])
    assert append(world)
    assert append(world)
    world.grant([writes, allow(Operation.WRITE, TOPIC, "orders", permission=Permission.DENY)])
    assert not append(world)
    world.grant([])
    assert not append(world)
    world.grant([allow(Operation.WRITE, TOPIC, "ord", pattern=PatternType.PREFIXED)])
    assert append(world)


def test_what_is_granted_for_one_use_case_is_not_for_another() -> None:
    world = GuardedWorld()
    world.grant([allow(Operation.WRITE, TOPIC, "orders")])
    assert append(world)
    read = outcome(lambda s: s.offsets.producers("orders", 0), world.session())
    assert isinstance(read, RefusedError)


def test_the_authorizer_is_replaced_only_when_acls_change() -> None:
    world = GuardedWorld()
    made = world.sessions.authorizer()
    world.seed(version=7)
    assert world.sessions.authorizer() is made
    world.grant([allow(Operation.WRITE, TOPIC, "orders")])
    assert world.sessions.authorizer() is not made


def test_public_metrics_are_a_property_of_the_listener() -> None:
    world = GuardedWorld()
    listener = ListenerAccess(public_metrics=True)
    call = lambda s: s.cluster.metrics()  # noqa: E731
    assert isinstance(outcome(call, world.session()), RefusedError)
    assert not isinstance(outcome(call, world.session(listener=listener)), RefusedError)
    # And of nothing else.
    found = outcome(lambda s: s.cluster.log_dirs(), world.session(listener=listener))
    assert isinstance(found, RefusedError)


def test_a_read_only_listener_is_audited_without_authorisation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = GuardedWorld()
    listener = ListenerAccess(name="ro", read_only=True)
    session = Sessions(world.broker).anonymous(HOST, listener=listener)
    with caplog.at_level("INFO", logger=LOGGER_NAME):
        assert isinstance(outcome(lambda s: s.topics.delete(name="orders"), session), RefusedError)
    (record,) = caplog.records
    assert '"listener":"ro"' in record.getMessage()

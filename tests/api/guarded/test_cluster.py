"""Joins: the audit log says who let which broker in, and who tried."""

import json
from typing import Any

import pytest
from guarded_calls import HOST, GuardedWorld, allow, outcome
from msgspec.structs import replace
from use_case_samples import JOINED, PROVEN

from moldau.api.guard import ListenerAccess
from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.acl import CLUSTER_NAME, Operation, ResourceType

BY_TOKEN = replace(PROVEN, token_id="one")
REFUSED = RefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "unknown, used or expired")


def refuse(_: object) -> Any:
    raise REFUSED


CASES = {
    "let in": (lambda _: JOINED, True, "broker 3 by token 'one'"),
    "refused": (refuse, False, "by token 'one': unknown, used or expired"),
    "refused after the proof": (
        lambda _: JOINED._replace(refusal="the token was used"),
        False,
        "by token 'one': the token was used",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_join_is_in_the_audit_log_with_its_outcome(case: str) -> None:
    effect, is_allowed, about = CASES[case]
    world = GuardedWorld()
    world.services["joins"].effects["join"] = effect
    found = outcome(lambda s: s.cluster.join_proven(BY_TOKEN), world.session())
    assert isinstance(found, RefusedError) == (case == "refused")
    (line,) = map(json.loads, world.audited)
    assert (line["use_case"], line["host"]) == ("cluster.join_proven", HOST)
    assert (line["allowed"], line["about"]) == (is_allowed, about)


def test_a_broker_that_returns_and_a_listener_that_refuses_are_in_the_audit_log() -> None:
    world = GuardedWorld()
    world.services["joins"].answers["join"] = JOINED
    listener = ListenerAccess(name="ro", read_only=True)
    session = world.session(listener=listener)
    outcome(lambda s: s.cluster.join_proven(PROVEN), session)
    outcome(lambda s: s.cluster.join_proven(BY_TOKEN), session)
    first, second = map(json.loads, world.audited)
    assert (first["allowed"], first["about"]) == (True, "broker 3 by the secret of the cluster")
    assert (second["allowed"], second["listener"]) == (False, "ro")
    assert second["about"] == "by token 'one': This listener is read-only"


def test_the_overview_names_the_topics_that_the_client_may_describe() -> None:
    world = GuardedWorld()
    seen: list[bool] = []

    def latest(sees: Any) -> str:
        seen[:] = [sees("orders"), sees("secret")]
        return "shown"

    world.services["overview"].effects["latest"] = latest
    describe = allow(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    world.grant([describe, allow(Operation.READ, ResourceType.TOPIC, "orders")])
    assert outcome(lambda s: s.cluster.overview(), world.session()) == "shown"
    assert seen == [True, False]
    # Rights on topics alone show nothing of the cluster.
    world.grant([allow(Operation.READ, ResourceType.TOPIC, "orders")])
    assert isinstance(outcome(lambda s: s.cluster.overview(), world.session()), RefusedError)

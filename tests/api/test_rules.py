"""Every use case of a session, by clients without rights: generated from the table of rules.

A public method of a guarded service without a rule fails here, and so does a rule that its method
does not enforce.
"""

from typing import Any

import pytest
from guarded_calls import ALICE, GuardedWorld, allow, outcome
from handler_calls import topic
from msgspec.structs import replace
from use_case_samples import (
    CLUSTER,
    GROUP,
    NAMES,
    PROVEN,
    QUEUE,
    SAMPLES,
    TOPIC,
    TRANSACTION,
    Sample,
)

from moldau.api.guard import REFUSAL_CODES, ListenerAccess
from moldau.api.rules import RULES
from moldau.api.session import Session
from moldau.model.errors import RefusedError
from moldau.security.acl import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from moldau.security.principal import user
from moldau.security.roles import role_acls

NOT_PART_OF_THE_SESSION = {
    "queues.define",
    "queues.bury",
    "queues.bury_in_new_topic",
    "queue_admin.read_letters",
    "queue_admin.delete_letters",
    "groups.reset_offsets",
    "groups.start_coordinators",
    "transactions.start_coordinators",
}
"""Rules for a part of another use case: see test_queues, test_groups."""
FACTS = {"auto_create_topics", "broker_id", "clock"}


CASES = [
    pytest.param(name, sample, id=f"{name}-{number}")
    for name, samples in SAMPLES.items()
    for number, sample in enumerate(samples)
]
GUARDED = [case for case in CASES if RULES[str(case.values[0])].needs]
READ_FROM_THE_IMAGE = {
    "topics.find",
    "topics.get",
    "topics.find_by_id",
    "topics.name_of",
    "topics.all",
    "queues.known_groups",
    "backup.cluster",
    "cluster.log_dirs",
    "appends.check",
}
"""Without a call of a service."""


def world(sample: Sample) -> GuardedWorld:
    made = GuardedWorld()
    others = {name: topic(name, (1,)) for name in sample.topics}
    made.seed(queue_groups={"billing": QUEUE}, topics={**made.broker.image.topics, **others})
    for name, answer in sample.answers.items():
        service, method = name.split(".")
        made.services[service].answers[method] = answer
    for name, effect in sample.effects.items():
        service, method = name.split(".")
        made.services[service].effects[method] = effect
    return made


def kinds_of(name: str, sample: Sample) -> tuple[ResourceType, ...]:
    return tuple(RULES[name].needs) if sample.kinds is None else sample.kinds


def rights(name: str, kinds: tuple[ResourceType, ...], names: Any = NAMES) -> list[Any]:
    return [allow(RULES[name].needs[kind], kind, names[kind]) for kind in kinds]


def is_refused(name: str, sample: Sample, kind: ResourceType, found: Any) -> bool:
    if kind in sample.without:
        return bool(found == sample.without[kind])
    kind = sample.refused_as.get(kind, kind)
    return isinstance(found, RefusedError) and found.code is REFUSAL_CODES[kind]


def test_every_method_of_every_service_has_a_rule_and_a_sample() -> None:
    session = GuardedWorld().session()
    public = {
        f"{service}.{method}"
        for service in Session.__slots__
        if not service.startswith("_") and service not in FACTS
        for method in vars(type(getattr(session, service)))
        if not method.startswith("_")
    }
    assert public == RULES.keys() - NOT_PART_OF_THE_SESSION
    assert public == SAMPLES.keys()


def test_only_these_are_open_to_everyone() -> None:
    assert {name for name, rule in RULES.items() if not rule.needs} == {
        "topics.await_leaders",
        "configs.topic_settings",
        "groups.are_stored",
        "cluster.cluster_id",
        "cluster.controller_id",
        "cluster.brokers",
        "cluster.alive",
        "cluster.is_cut_off",
        "cluster.health",
        "cluster.join_challenge",
        "cluster.join_proven",
        "play.is_offered",
    }
    for name, rule in RULES.items():
        assert bool(rule.needs) != bool(rule.open_because), name
        assert not (rule.audited and not rule.changes), name


@pytest.mark.parametrize(("name", "sample"), GUARDED)
def test_a_client_without_rights_gets_nothing_and_changes_nothing(
    name: str, sample: Sample
) -> None:
    made = world(sample)
    found = outcome(sample.call, made.session())
    first = kinds_of(name, sample)[0]
    assert is_refused(name, sample, first, found), found
    if first not in sample.without:
        assert made.touched == []


@pytest.mark.parametrize(("name", "sample"), GUARDED)
def test_each_right_of_the_rule_is_needed(name: str, sample: Sample) -> None:
    kinds = kinds_of(name, sample)
    for missing in kinds:
        made = world(sample)
        made.grant(rights(name, tuple(kind for kind in kinds if kind is not missing)))
        found = outcome(sample.call, made.session())
        assert is_refused(name, sample, missing, found), (missing, found)
        if not sample.reads_first:
            assert made.touched in ([], ["queues.topics_of"]), missing


@pytest.mark.parametrize(("name", "sample"), GUARDED)
def test_the_rights_of_the_rule_are_enough(name: str, sample: Sample) -> None:
    made = world(sample)
    made.grant(rights(name, kinds_of(name, sample)))
    found = outcome(sample.call, made.session())
    assert not isinstance(found, RefusedError), found
    assert bool(made.touched) == (name not in READ_FROM_THE_IMAGE)
    assert all(found != refused for refused in sample.without.values())


@pytest.mark.parametrize(("name", "sample"), GUARDED)
def test_rights_on_other_names_are_not_enough(name: str, sample: Sample) -> None:
    kinds = tuple(kind for kind in kinds_of(name, sample) if kind is not CLUSTER)
    for other in ("{}s", "x{}", "x"):
        made = world(sample)
        names = {kind: other.format(text) for kind, text in NAMES.items()}
        made.grant(rights(name, kinds, names))
        found = outcome(sample.call, made.session())
        assert is_refused(name, sample, kinds_of(name, sample)[0], found), found


@pytest.mark.parametrize(("name", "sample"), GUARDED)
def test_rights_of_another_principal_are_not_enough(name: str, sample: Sample) -> None:
    made = world(sample)
    made.grant(
        allow(Operation.ALL, kind, text, principal=user("bob")) for kind, text in NAMES.items()
    )
    found = outcome(sample.call, made.session())
    assert is_refused(name, sample, kinds_of(name, sample)[0], found), found


@pytest.mark.parametrize(("name", "sample"), GUARDED)
def test_a_deny_wins_over_all_rights(name: str, sample: Sample) -> None:
    made = world(sample)
    everything = [allow(Operation.ALL, kind, "*") for kind in (TOPIC, GROUP, TRANSACTION)]
    everything.append(allow(Operation.ALL, CLUSTER, CLUSTER_NAME))
    denials = [
        allow(operation, kind, NAMES[kind], permission=Permission.DENY)
        for kind, operation in RULES[name].needs.items()
    ]
    instead = RULES[name].or_on_cluster
    if instead is not None:
        denials.append(allow(instead, CLUSTER, CLUSTER_NAME, permission=Permission.DENY))
    if RULES[name].or_on_any_topic is not None:
        denials.append(allow(Operation.ALL, TOPIC, "*", permission=Permission.DENY))
    made.grant([*everything, *denials])
    found = outcome(sample.call, made.session())
    assert is_refused(name, sample, kinds_of(name, sample)[0], found), found


@pytest.mark.parametrize(("name", "sample"), GUARDED)
def test_a_read_only_listener_refuses_what_changes_something(name: str, sample: Sample) -> None:
    made = world(sample)
    listener = ListenerAccess(name="ro", read_only=True)
    found = outcome(sample.call, made.session(user("root"), listener))
    if RULES[name].changes:
        assert is_refused(name, sample, kinds_of(name, sample)[0], found), found
        assert made.touched == []
    else:
        assert not isinstance(found, RefusedError), found


def test_through_a_read_only_listener_no_broker_joins_and_those_of_the_cluster_return() -> None:
    """A broker with a token is a new one; one that proves the secret is of the cluster."""
    (sample,) = SAMPLES["cluster.join_proven"]
    made = world(sample)
    listener = ListenerAccess(read_only=True)
    by_token = replace(PROVEN, token_id="one")
    found = outcome(lambda s: s.cluster.join_proven(by_token), made.session(listener=listener))
    assert isinstance(found, RefusedError)
    assert made.touched == []
    outcome(sample.call, made.session(listener=listener))
    outcome(lambda s: s.cluster.join_proven(by_token), made.session())
    assert made.touched == ["joins.join", "joins.join"]


@pytest.mark.parametrize(("name", "sample"), GUARDED)
def test_a_super_user_needs_no_rights(name: str, sample: Sample) -> None:
    made = world(sample)
    found = outcome(sample.call, made.session(user("root")))
    assert not isinstance(found, RefusedError), found


@pytest.mark.parametrize(
    ("name", "sample"), [case for case in GUARDED if RULES[str(case.values[0])].or_on_cluster]
)
def test_a_right_on_the_cluster_is_enough_where_the_rule_says_so(name: str, sample: Sample) -> None:
    made = world(sample)
    instead = RULES[name].or_on_cluster
    assert instead is not None
    made.grant([allow(instead, CLUSTER, CLUSTER_NAME)])
    found = outcome(sample.call, made.session())
    assert not isinstance(found, RefusedError), found
    assert all(found != refused for refused in sample.without.values())


@pytest.mark.parametrize("pattern", [PatternType.LITERAL, PatternType.PREFIXED])
def test_a_producer_id_needs_a_topic_to_write_to(pattern: PatternType) -> None:
    (sample,) = SAMPLES["producer_ids.take"]
    made = world(sample)
    made.grant([allow(Operation.WRITE, TOPIC, "any", pattern=pattern)])
    assert not isinstance(outcome(sample.call, made.session()), RefusedError)
    made.grant([allow(Operation.READ, TOPIC, "any", pattern=pattern)])
    assert isinstance(outcome(sample.call, made.session(ALICE)), RefusedError)


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_changes_and_refusals_are_in_the_audit_log(name: str, sample: Sample) -> None:
    rule = RULES[name]
    made = world(sample)
    outcome(sample.call, made.session())
    denied = len(made.audited)
    kinds = kinds_of(name, sample)
    is_hidden = bool(kinds) and sample.reads_first and kinds[0] in sample.without
    if rule.needs and not is_hidden and not name.startswith(("topics.", "queries.", "queues.kn")):
        assert denied >= 1
        assert f'"use_case":"{name}"' in made.audited[0]
        assert '"allowed":false' in made.audited[0]
    made.audited.clear()
    outcome(sample.call, made.session(user("root")))
    assert bool(made.audited) == rule.audited


@pytest.mark.parametrize(
    ("name", "sample"),
    [case for case in GUARDED if CLUSTER in RULES[str(case.values[0])].needs],
)
def test_an_operator_runs_the_cluster_and_grants_no_rights(name: str, sample: Sample) -> None:
    made = world(sample)
    made.grant(role_acls("operator", ALICE))
    found = outcome(sample.call, made.session())
    assert isinstance(found, RefusedError) == (name in ONLY_ADMINISTRATORS), found


ONLY_ADMINISTRATORS = {
    "backup.cluster",
    "backup.queues",
    "backup.append",
    "backup.trim",
    "backup.restore_cluster",
    "backup.restore_queue",
    "backup.define_queue",
    "cluster.join",
    "transactions.abort_hanging",
    "cluster_transactions.abort_hanging",
    "play.do",
    "producer_ids.take",
    "security.put_password",
    "security.put_credential",
    "security.delete_credential",
    "security.delete_user",
    "security.create_acls",
    "security.delete_acls",
    "security.create_join_token",
    "security.delete_join_token",
}
"""Of the use cases that are about the cluster. Producer ids are for those who write."""

"""Users, ACLs and quotas of a backup: what comes out of one cluster goes into another."""

from types import SimpleNamespace

import msgspec
from guarded_calls import GuardedWorld, outcome

from moldau.metadata.security import User
from moldau.model.backup import AclCopy, ClusterCopy, ClusterToRestore, SecurityCopy
from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from moldau.security.principal import user
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramCredential, ScramMechanism

CREDENTIAL = ScramCredential(b"salt", 4096, b"stored", b"server")
RULE = Acl(
    ResourceType.TOPIC,
    "orders",
    PatternType.LITERAL,
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
QUOTA = QuotaEntity("alice", None)


def test_what_lets_clients_in_comes_back_as_it_was():
    source, target = GuardedWorld(), GuardedWorld()
    source.seed(
        users={"alice": User("alice", {ScramMechanism.SHA_512: CREDENTIAL})},
        acls=frozenset({RULE}),
        quotas={QUOTA: {"producer_byte_rate": 7.0}},
        next_producer_id=5000,
    )
    found = outcome(lambda session: session.backup.cluster(), source.session(user("root")))
    copy = msgspec.json.decode(msgspec.json.encode(found), type=ClusterCopy)
    assert "stored" not in repr(copy)
    wanted = ClusterToRestore(producer_id_min=copy.next_producer_id, security=copy.security)
    outcome(lambda session: session.backup.restore_cluster(wanted), target.session(user("root")))
    calls = {
        f"{name}.{method}": args
        for name, service in target.services.items()
        for method, args, _ in service.calls
    }
    assert calls == {
        "producer_ids.skip_below": (5000,),
        "security.put_credential": ("alice", ScramMechanism.SHA_512, CREDENTIAL),
        "security.create_acls": ([RULE],),
        "security.alter_quotas": (QUOTA, {"producer_byte_rate": 7.0}),
    }


def test_a_topic_is_compacted_by_what_its_replicas_here_say_not_by_its_own_settings():
    world = GuardedWorld()
    topic_id = world.broker.image.topics["orders"].topic_id
    for others, compacted in (([], False), ([False, False], False), ([False, True], True)):
        world.services["replicas"].answers["__iter__"] = [
            SimpleNamespace(topic_id=topic_id, is_compacted=each) for each in others
        ]
        found = outcome(lambda session: session.backup.cluster(), world.session(user("root")))
        assert [topic.compacted for topic in found.topics] == [compacted]


def test_a_rule_that_no_cluster_has_is_refused_before_anything_is_restored():
    world = GuardedWorld()
    bad = AclCopy(
        resource_type=99,
        resource_name="x",
        pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission=3,
    )
    wanted = ClusterToRestore(producer_id_min=0, security=SecurityCopy(acls=(bad,)))
    root = world.session(user("root"))
    found = outcome(lambda session: session.backup.restore_cluster(wanted), root)
    assert isinstance(found, RefusedError)
    assert found.code is ErrorCode.INVALID_REQUEST
    assert world.touched == []

"""What the audit log says of each change, for every use case that is audited."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from guarded_calls import GuardedWorld, outcome
from handler_calls import image, topic
from use_case_samples import (
    CONNECTED,
    JOINED,
    PARTITION,
    PRODUCER,
    PROVEN,
    QUEUE,
    QUEUE_COPY,
    QUEUE_STATE,
    offset_to_commit,
)

from moldau.api.cluster_transactions import AbortedTransaction
from moldau.api.rules import RULES
from moldau.api.session import Session
from moldau.control.config_service import ResourceKind
from moldau.control.topic_service import HIGH_WATERMARK
from moldau.groups.results import DescribedConsumerGroup, DescribedGroup
from moldau.metadata.commands import ConfigChange, ConfigOperation
from moldau.metadata.leader_balance import ElectionType
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.metadata.security import JoinToken
from moldau.model.backup import (
    AclCopy,
    ClusterToRestore,
    SecurityCopy,
    StartToRestore,
)
from moldau.model.errors import ErrorCode
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.model.play import PlayAction, PlayKind
from moldau.queues.admin import DeadLetterPosition
from moldau.queues.admin_messages import Purged
from moldau.queues.connect import DefinitionCheck
from moldau.queues.types import ConnectOptions, ConnectResult
from moldau.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from moldau.security.principal import user
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramCredential, ScramMechanism

RULE = Acl(
    ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:bob", "*", Operation.READ,
    Permission.ALLOW,
)  # fmt: skip
SETTINGS = QueueSettings(dead_letter_topic="elsewhere")
CHANGES = [
    ConfigChange(name="retention.ms", operation=ConfigOperation.SET, value="1"),
    ConfigChange(name="cleanup.policy", operation=ConfigOperation.APPEND, value="compact"),
    ConfigChange(name="max.message.bytes", operation=ConfigOperation.DELETE),
    ConfigChange(name="ssl.keystore.password", operation=ConfigOperation.SET, value="planted"),
]
CHANGED = [
    "retention.ms=1",
    "APPEND cleanup.policy=compact",
    "DELETE max.message.bytes",
    "ssl.keystore.password=(hidden)",
]
ABOUT_SETTINGS = (
    "visibility_ms=30000 attempts_max=5 backoff_ms=1000 backoff_ms_max=60000 "
    "dead_letter_topic=elsewhere starts_at_end=False"
)

Row = tuple[str, Callable[[Session], Any], list[str]]
ROWS: list[Row] = [
    (
        "play.do",
        lambda s: s.play.do(PlayAction(kind=PlayKind.LINK, by="me", broker=1, other=2)),
        ["cut the link between brokers 1 and 2"],
    ),
    (
        "topics.create",
        lambda s: s.topics.create("t", partitions=3, configs={"retention.ms": "1"}),
        ["partitions=3 replication_factor=-1", "retention.ms=1"],
    ),
    (
        "topics.create",
        lambda s: s.topics.create("t", assignments={0: [1, 2]}, validate_only=True),
        ["only validated: replicas={0: [1, 2]}"],
    ),
    ("topics.ensure", lambda s: s.topics.ensure("orders"), [""]),
    ("topics.delete", lambda s: s.topics.delete(name="orders"), [""]),
    (
        "topics.add_partitions",
        lambda s: s.topics.add_partitions("orders", 3, [[1]], validate_only=False),
        ["partitions=3 replicas=[[1]]"],
    ),
    (
        "topics.delete_records",
        lambda s: s.topics.delete_records("orders", 2, 77),
        ["partition 2 before 77"],
    ),
    (
        "topics.trim",
        lambda s: s.topics.trim(topic("two", (1,), (2,)), {0: 77, 1: HIGH_WATERMARK}),
        ["partition 0 before 77", "partition 1 before the end"],
    ),
    (
        "configs.alter",
        lambda s: s.configs.alter(ResourceKind.TOPIC, "orders", CHANGES, validate_only=False),
        CHANGED,
    ),
    (
        "configs.alter",
        lambda s: s.configs.alter(ResourceKind.BROKER, "1", CHANGES[:1], validate_only=True),
        ["only validated: broker 1: retention.ms=1"],
    ),
    (
        "configs.alter_topic",
        lambda s: s.configs.alter_topic("orders", CHANGES, validate_only=False),
        CHANGED,
    ),
    (
        "configs.alter_topic",
        lambda s: s.configs.alter_topic("orders", CHANGES[:1], validate_only=True),
        ["only validated: retention.ms=1"],
    ),
    (
        "configs.replace",
        lambda s: s.configs.replace(
            ResourceKind.BROKER, "1", {"log.retention.ms": "1"}, validate_only=False
        ),
        ["broker 1: log.retention.ms=1"],
    ),
    (
        "groups.reset_offsets",
        lambda s: s.groups.commit_offsets("billing", [offset_to_commit()]),
        ["orders: 0=1"],
    ),
    (
        "groups.reset",
        lambda s: s.groups.reset(
            "billing",
            topic("orders", (1,)),
            dict.fromkeys(range(51), 7),
            removes_members=False,
            validate_only=True,
        ),
        [
            "only validated: orders: " + ", ".join(f"{index}=7" for index in range(50)),
            "only validated: orders: 50=7",
            "only validated: ",
        ],
    ),
    (
        "groups.reset",
        lambda s: s.groups.reset(
            "billing", topic("orders", (1,)), {0: 7}, removes_members=True, validate_only=False
        ),
        ["members removed, orders: 0=7", ""],
    ),
    (
        "groups.delete_offsets",
        lambda s: s.groups.delete_offsets(
            "billing", [PARTITION, TopicPartition("orders", PartitionIndex(1))]
        ),
        ["orders: 0, 1", ""],
    ),
    ("groups.delete_groups", lambda s: s.groups.delete_groups(["billing"]), [""]),
    (
        "transactions.abort_hanging",
        lambda s: s.transactions.abort_hanging(PARTITION, *PRODUCER),
        ["orders-0: producer 7 epoch 0"],
    ),
    (
        "queue_admin.redrive",
        lambda s: s.queue_admin.redrive("billing", "orders", None, target=None, validate_only=True),
        ["only validated: all dead letters of orders to orders"] * 2,
    ),
    (
        "queue_admin.redrive",
        lambda s: s.queue_admin.redrive(
            "billing", "orders", [DeadLetterPosition(0, 7)], target="u", validate_only=False
        ),
        ["1 dead letters of orders to u"] * 2,
    ),
    (
        "queue_admin.purge",
        lambda s: s.queue_admin.purge("billing", "orders", Purged.DEAD, confirm="billing"),
        ["dead letters of orders in group billing"] * 2,
    ),
    (
        "cluster_transactions.abort",
        lambda s: s.cluster_transactions.abort("payments"),
        [""],
    ),
    (
        "cluster_transactions.abort_hanging",
        lambda s: s.cluster_transactions.abort_hanging(PARTITION, 7, 0),
        ["orders-0: producer 7 epoch 0"],
    ),
    (
        "cluster.join_proven",
        lambda s: s.cluster.join_proven(PROVEN),
        ["broker 3 by the secret of the cluster"],
    ),
    ("cluster.drain", lambda s: s.cluster.drain(2), ["broker 2"]),
    ("cluster.keep", lambda s: s.cluster.keep(2), ["broker 2"]),
    ("cluster.reassign", lambda s: s.cluster.reassign("orders", 0, [1, 2]), ["orders-0 to [1, 2]"]),
    ("cluster.reassign", lambda s: s.cluster.reassign("orders", 0, None), ["orders-0 cancelled"]),
    (
        "cluster.recover",
        lambda s: s.cluster.recover([3, 2], [("orders", 0)], dry_run=False),
        ["lost brokers [2, 3], partitions ['orders-0']"],
    ),
    ("cluster.elections_due", lambda s: s.cluster.elections_due(), [""]),
    (
        "cluster.elect",
        lambda s: s.cluster.elect("orders", 0, ElectionType.UNCLEAN),
        ["orders-0 UNCLEAN"],
    ),
    (
        "security.put_password",
        lambda s: s.security.put_password("bob", b"planted", iterations=4096),
        ["user bob: SCRAM-SHA-256, SCRAM-SHA-512, 4096 iterations"],
    ),
    (
        "security.put_credential",
        lambda s: s.security.put_credential(
            "bob", ScramMechanism.SHA_256, ScramCredential(b"planted", 4096, b"planted", b"planted")
        ),
        ["user bob: SCRAM-SHA-256, 4096 iterations"],
    ),
    (
        "security.delete_credential",
        lambda s: s.security.delete_credential("bob", ScramMechanism.SHA_256),
        ["user bob: SCRAM-SHA-256"],
    ),
    ("security.delete_user", lambda s: s.security.delete_user("bob"), ["user bob"]),
    (
        "security.create_acls",
        lambda s: s.security.create_acls([RULE, RULE]),
        ["ALLOW User:bob READ TOPIC orders LITERAL *"] * 2,
    ),
    (
        "security.delete_acls",
        lambda s: s.security.delete_acls([AclFilter()]),
        ["ANY (any) ANY ANY (any) ANY (any)"],
    ),
    (
        "security.alter_quotas",
        lambda s: s.security.alter_quotas(QuotaEntity("bob", None), {"producer_byte_rate": None}),
        ["QuotaEntity(user='bob', client_id=None) {'producer_byte_rate': None}"],
    ),
    (
        "security.create_join_token",
        lambda s: s.security.create_join_token(60_000),
        ["lifetime_ms=60000", "token one"],
    ),
    ("security.delete_join_token", lambda s: s.security.delete_join_token("one"), ["token one"]),
    (
        "queues.define",
        lambda s: s.queues.connect(ConnectOptions(group="new", topics=("orders",))),
        [ABOUT_SETTINGS, "topic orders"],
    ),
    (
        "queues.define",
        lambda s: s.queues.connect(ConnectOptions(group="billing", topics=("orders",))),
        [ABOUT_SETTINGS],
    ),
    ("queues.delete_group", lambda s: s.queues.delete_group("billing"), [""]),
    (
        "backup.trim",
        lambda s: s.backup.trim(StartToRestore(topic="orders", partition=2, start=77)),
        ["orders-2 to 77"],
    ),
    (
        "backup.restore_cluster",
        lambda s: s.backup.restore_cluster(ClusterToRestore(producer_id_min=7)),
        ["producer ids from 7"],
    ),
    (
        "backup.restore_queue",
        lambda s: s.backup.restore_queue(QUEUE_STATE),
        ["queue billing on orders-0"],
    ),
    ("backup.define_queue", lambda s: s.backup.define_queue(QUEUE_COPY), ["queue billing"]),
]


def world() -> GuardedWorld:
    made = GuardedWorld()
    made.seed(queue_groups={"billing": QUEUE})

    def define(options: ConnectOptions, check: DefinitionCheck) -> ConnectResult:
        known = made.broker.image.queue_groups.get(options.group)
        check(known, QueueGroup(name=options.group, topics=options.topics, settings=SETTINGS))
        return CONNECTED

    made.services["queues"].effects["connect"] = define
    made.services["joins"].answers["join"] = JOINED
    made.services["configs"].answers["alter"] = image({})
    made.services["groups"].answers |= {
        "commit_offsets": [ErrorCode.NONE],
        "reset_offsets": {},
        "delete_offsets": [ErrorCode.NONE] * 2,
        "describe": DescribedGroup(error=ErrorCode.NONE, protocol_type="consumer"),
    }
    made.services["cluster_transactions"].answers["abort"] = AbortedTransaction(
        state="Ongoing", is_aborted=True, producer_id=7, producer_epoch=0, partitions=[]
    )
    token = JoinToken("one", b"planted", 1)
    made.services["security"].answers["create_join_token"] = ("one.planted", token)
    return made


@pytest.mark.parametrize(
    ("use_case", "call", "about"), [pytest.param(*row, id=row[0]) for row in ROWS]
)
def test_the_audit_log_says_what_a_change_changes(
    use_case: str, call: Callable[[Session], Any], about: list[str]
) -> None:
    made = world()
    outcome(call, made.session(user("root")))
    lines = [json.loads(line) for line in made.audited]
    assert [line.get("about", "") for line in lines] == about
    assert {line["use_case"] for line in lines} == {use_case}
    assert all(line["allowed"] for line in lines)
    assert "planted" not in "".join(made.audited)


def test_every_change_that_is_audited_is_looked_at() -> None:
    assert {name for name, _, _ in ROWS} == {name for name, rule in RULES.items() if rule.audited}


def test_rights_of_a_backup_are_logged_like_others() -> None:
    made = world()
    made.services["security"].answers["create_acls"] = [None]
    rule = AclCopy(
        resource_type=int(RULE.resource_type),
        resource_name=RULE.resource_name,
        pattern_type=int(RULE.pattern_type),
        principal=RULE.principal,
        host=RULE.host,
        operation=int(RULE.operation),
        permission=int(RULE.permission),
    )
    backup = ClusterToRestore(producer_id_min=0, security=SecurityCopy(acls=(rule,)))
    outcome(lambda s: s.backup.restore_cluster(backup), made.session(user("root")))
    by_backup = json.loads(made.audited[-1])
    outcome(lambda s: s.security.create_acls([RULE]), made.session(user("root")))
    by_hand = json.loads(made.audited[-1])
    assert by_backup["use_case"] == "security.create_acls"
    assert by_backup["about"] == by_hand["about"]


def test_settings_do_not_hide_each_other() -> None:
    made = world()
    decoys = [
        ConfigChange(name=f"x{number}" + "y" * 100, operation=ConfigOperation.DELETE)
        for number in range(999)
    ]

    def alter(changes: list[ConfigChange]) -> Any:
        return outcome(
            lambda s: s.configs.alter(ResourceKind.TOPIC, "orders", changes, validate_only=False),
            made.session(user("root")),
        )

    alter([*decoys, CHANGES[0]])
    assert json.loads(made.audited[-1])["about"] == "retention.ms=1"
    assert made.touched == ["configs.alter"]
    alter([*decoys, *CHANGES])
    assert made.touched == ["configs.alter"], "not carried out: it would not be logged in full"


@pytest.mark.parametrize("consumer", [True, False])
def test_a_consumer_that_is_never_a_member_commits_without_a_line(consumer: bool) -> None:
    made = world()
    made.services["groups"].answers |= {
        "describe": DescribedGroup(error=ErrorCode.NONE),
        "describe_consumers": DescribedConsumerGroup(
            error=ErrorCode.NONE if consumer else ErrorCode.GROUP_ID_NOT_FOUND
        ),
    }
    session = made.session(user("root"))
    outcome(lambda s: s.groups.commit_offsets("billing", [offset_to_commit()]), session)
    assert len(made.audited) == consumer
    # A member's own commits have no line either.
    made.audited.clear()
    outcome(
        lambda s: s.groups.commit_offsets(
            "billing", [offset_to_commit()], member_id="m", generation=1
        ),
        session,
    )
    assert made.audited == []

"""Owns samples of what operators do: with queues, transactions, pipelines, users and ACLs."""

from msgspec.structs import replace
from samples import PARTITION, QUEUE, TOPIC, TRANSACTION, Sample, one

from moldau.api.cluster_pipelines import PipelineBoard
from moldau.api.cluster_transactions import (
    AbortedTransaction,
    OpenProducer,
    TransactionListing,
    TransactionPage,
)
from moldau.metadata.security import JoinToken
from moldau.model.ids import BrokerId
from moldau.model.play import PlayAction, PlayKind
from moldau.queues.admin import DeadLetterPage, DeadLetterPosition, QueueView
from moldau.queues.admin_messages import Purged
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramCredential, ScramMechanism

LISTING = TransactionListing(
    transactional_id="payments",
    producer_id=7,
    producer_epoch=0,
    state="Ongoing",
    age_ms=1,
    timeout_ms=2,
    partitions=[PARTITION],
    partition_count=1,
)

OPERATOR_SAMPLES: dict[str, list[Sample]] = {
    "queue_admin.show": one(
        lambda s: s.queue_admin.show("billing", "orders"),
        answers={
            "queue_admin.show": QueueView(
                group=QUEUE, partitions=[], in_flight=[], dead_letters=0, silent=[]
            )
        },
    ),
    "queue_admin.dead_letters": one(
        lambda s: s.queue_admin.dead_letters("billing", "orders", DeadLetterPosition(0, -1), 1),
        answers={
            "queue_admin.dead_letters": DeadLetterPage(
                topic="dead", records=[], next=None, silent=[]
            )
        },
    ),
    "queue_admin.redrive": one(
        lambda s: s.queue_admin.redrive("billing", "orders", None, target=None, validate_only=False)
    ),
    "queue_admin.purge": one(
        lambda s: s.queue_admin.purge("billing", "orders", Purged.READY, confirm="billing")
    ),
    "cluster_transactions.page": one(
        lambda s: s.cluster_transactions.page(limit=1),
        without={
            TRANSACTION: TransactionPage(transactions=[], next=None, silent=[]),
            TOPIC: TransactionPage(
                transactions=[(replace(LISTING, partitions=[]), BrokerId(1))], next=None, silent=[]
            ),
        },
        reads_first=True,
        answers={
            "cluster_transactions.page": TransactionPage(
                transactions=[(LISTING, BrokerId(1))], next=None, silent=[]
            )
        },
    ),
    "cluster_transactions.hanging": one(
        lambda s: s.cluster_transactions.hanging(),
        without={TOPIC: ([], [])},
        reads_first=True,
        answers={"cluster_transactions.hanging": ([OpenProducer("orders", 0, 7, 0, 3, None)], [])},
    ),
    "cluster_transactions.abort": one(
        lambda s: s.cluster_transactions.abort("payments"),
        answers={
            "cluster_transactions.abort": AbortedTransaction(
                state="Ongoing",
                is_aborted=True,
                producer_id=7,
                producer_epoch=0,
                partitions=[PARTITION],
            )
        },
    ),
    "cluster_transactions.abort_hanging": one(
        lambda s: s.cluster_transactions.abort_hanging(PARTITION, 7, 0)
    ),
    "play.is_offered": one(lambda s: s.play.is_offered()),
    "play.board": one(lambda s: s.play.board()),
    "play.do": one(lambda s: s.play.do(PlayAction(kind=PlayKind.KILL, by="me", broker=1))),
    "pipelines.board": one(
        lambda s: s.pipelines.board(),
        answers={"pipelines.board": PipelineBoard([], is_complete=True, silent=[])},
    ),
    "security.users": one(lambda s: s.security.users(), answers={"security.users": {}}),
    "security.put_password": one(lambda s: s.security.put_password("bob", b"secret")),
    "security.put_credential": one(
        lambda s: s.security.put_credential(
            "bob", ScramMechanism.SHA_256, ScramCredential(b"", 4096, b"", b"")
        )
    ),
    "security.delete_credential": one(
        lambda s: s.security.delete_credential("bob", ScramMechanism.SHA_256)
    ),
    "security.delete_user": one(lambda s: s.security.delete_user("bob")),
    "security.acls": one(lambda s: s.security.acls()),
    "security.create_acls": one(lambda s: s.security.create_acls([])),
    "security.delete_acls": one(lambda s: s.security.delete_acls([])),
    "security.quotas": one(lambda s: s.security.quotas()),
    "security.alter_quotas": one(lambda s: s.security.alter_quotas(QuotaEntity("bob", None), {})),
    "security.join_tokens": one(lambda s: s.security.join_tokens()),
    "security.create_join_token": one(
        lambda s: s.security.create_join_token(),
        answers={"security.create_join_token": ("one.secret", JoinToken("one", b"", 1))},
    ),
    "security.delete_join_token": one(lambda s: s.security.delete_join_token("id")),
}

"""Types and constants of the services, for protocol servers, which import nothing below the facade.

Types of the queue service are in queues.py.
"""

from moldau.control.config_service import ResourceKind
from moldau.control.topic_service import HIGH_WATERMARK
from moldau.data.append_forwarding import AppendResult
from moldau.data.fetch import PartitionFetch, PartitionFetchResult
from moldau.data.fetch_session import FetchSession, SessionPartition, WantedPartition
from moldau.data.offsets import EARLIEST, LATEST
from moldau.data.produce import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from moldau.data.record_reader import ReadPage, offset_at, read_page
from moldau.data.stored_batches import bytes_in
from moldau.data.transactional_produce import AppendOutcome, TransactionalWrite
from moldau.groups.assignors.queue import QUEUE_ASSIGNOR
from moldau.groups.consumer_protocol import read_assignment, subscribed_topics
from moldau.groups.events import (
    ConsumerHeartbeat,
    Heartbeat,
    Join,
    Leave,
    LeavingMember,
    OffsetToCommit,
    Sync,
)
from moldau.groups.results import (
    NO_OFFSET,
    CommittedOffset,
    ConsumerHeartbeatResult,
    DescribedConsumer,
    DescribedMember,
    FetchOffsetsResult,
    HeartbeatResult,
    JoinResult,
    LeaveResult,
    ListedGroup,
    SyncResult,
)
from moldau.metadata.commands import ConfigChange, ConfigOperation
from moldau.metadata.config_types import INT_MAX, LONG_MAX, shown
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, Partition, Topic
from moldau.metadata.image import Broker as RegisteredBroker
from moldau.metadata.leader_balance import ElectionType
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.metadata.topic_configs import ConfigEntry
from moldau.replica.raft_replica import Proposal
from moldau.security.quotas import QuotaEntity, QuotaKey
from moldau.transactions.records import TransactionState
from moldau.transactions.totals import TransactionTotals

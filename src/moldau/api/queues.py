"""The queue service and its types, for protocol servers, which import nothing below the facade."""

from moldau.metadata.queue_groups import QueueSettings
from moldau.queues.admin import (
    DeadLetterPage,
    DeadLetterPosition,
    LeaderRefusal,
    PurgeResult,
    QueueView,
    Redriven,
)
from moldau.queues.admin_messages import PartitionReport, Purged, RedriveRow
from moldau.queues.request_checks import invalid
from moldau.queues.service import QueueService
from moldau.queues.types import (
    Assignment,
    ConnectOptions,
    Delivery,
    ErrorReason,
    Mode,
    PartitionsByTopic,
    PollOptions,
    PollResult,
    QueueRefusedError,
    StartAt,
    TokenResult,
)

"""The queue service and its types, for protocol servers, which import nothing below the facade."""

from moldau.metadata.queue_groups import QueueSettings
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
    QueueRefusedError,
    StartAt,
    TokenResult,
)

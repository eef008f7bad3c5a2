"""Moldau: a distributed, fault-tolerant message queue and log that speaks Kafka."""

from importlib import import_module
from typing import TYPE_CHECKING

from moldau.version import __version__

if TYPE_CHECKING:
    from moldau.client.errors import (
        BufferFullError,
        ClientError,
        DeliveryFailedError,
        InvalidArgumentError,
        LeaseLostError,
        NotFoundError,
        RejectedError,
        SendFailedError,
        TimedOutError,
        UnavailableError,
        UnreachableError,
    )
    from moldau.client.kafka.admin import Admin
    from moldau.client.kafka.async_admin import AsyncAdmin
    from moldau.client.kafka.async_consumer import AsyncConsumer
    from moldau.client.kafka.async_delivery import AsyncDelivery
    from moldau.client.kafka.async_producer import AsyncProducer, AsyncTransaction
    from moldau.client.kafka.consumer import Consumer
    from moldau.client.kafka.consumer_config import ConsumerConfig, OffsetResetPolicy
    from moldau.client.kafka.deliveries import Delivery, Receipt
    from moldau.client.kafka.message import Message
    from moldau.client.kafka.producer import Producer
    from moldau.client.kafka.producer_config import AckMode, ProducerConfig
    from moldau.client.kafka.transaction import Transaction
    from moldau.client.queue.client import AsyncQueueClient
    from moldau.client.queue.outgoing import Outgoing
    from moldau.client.queue.sync_client import QueueClient
    from moldau.client.queue.sync_worker import QueueMessage, Worker
    from moldau.client.queue.worker import AsyncQueueMessage, AsyncWorker


# The broker and the command line import this package too, and need none of it.
_HOMES = {
    "AckMode": "moldau.client.kafka.producer_config",
    "Admin": "moldau.client.kafka.admin",
    "AsyncAdmin": "moldau.client.kafka.async_admin",
    "AsyncConsumer": "moldau.client.kafka.async_consumer",
    "AsyncDelivery": "moldau.client.kafka.async_delivery",
    "AsyncProducer": "moldau.client.kafka.async_producer",
    "AsyncQueueClient": "moldau.client.queue.client",
    "AsyncQueueMessage": "moldau.client.queue.worker",
    "AsyncTransaction": "moldau.client.kafka.async_producer",
    "AsyncWorker": "moldau.client.queue.worker",
    "BufferFullError": "moldau.client.errors",
    "ClientError": "moldau.client.errors",
    "Consumer": "moldau.client.kafka.consumer",
    "ConsumerConfig": "moldau.client.kafka.consumer_config",
    "Delivery": "moldau.client.kafka.deliveries",
    "DeliveryFailedError": "moldau.client.errors",
    "InvalidArgumentError": "moldau.client.errors",
    "LeaseLostError": "moldau.client.errors",
    "Message": "moldau.client.kafka.message",
    "NotFoundError": "moldau.client.errors",
    "OffsetResetPolicy": "moldau.client.kafka.consumer_config",
    "Outgoing": "moldau.client.queue.outgoing",
    "Producer": "moldau.client.kafka.producer",
    "ProducerConfig": "moldau.client.kafka.producer_config",
    "QueueClient": "moldau.client.queue.sync_client",
    "QueueMessage": "moldau.client.queue.sync_worker",
    "Receipt": "moldau.client.kafka.deliveries",
    "RejectedError": "moldau.client.errors",
    "SendFailedError": "moldau.client.errors",
    "TimedOutError": "moldau.client.errors",
    "Transaction": "moldau.client.kafka.transaction",
    "UnavailableError": "moldau.client.errors",
    "UnreachableError": "moldau.client.errors",
    "Worker": "moldau.client.queue.sync_worker",
}

__all__ = [
    "AckMode",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncProducer",
    "AsyncQueueClient",
    "AsyncQueueMessage",
    "AsyncTransaction",
    "AsyncWorker",
    "BufferFullError",
    "ClientError",
    "Consumer",
    "ConsumerConfig",
    "Delivery",
    "DeliveryFailedError",
    "InvalidArgumentError",
    "LeaseLostError",
    "Message",
    "NotFoundError",
    "OffsetResetPolicy",
    "Outgoing",
    "Producer",
    "ProducerConfig",
    "QueueClient",
    "QueueMessage",
    "Receipt",
    "RejectedError",
    "SendFailedError",
    "TimedOutError",
    "Transaction",
    "UnavailableError",
    "UnreachableError",
    "Worker",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Import public names on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

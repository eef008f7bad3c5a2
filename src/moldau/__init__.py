"""Moldau: a distributed, fault-tolerant message queue and log that speaks Kafka."""

from importlib import import_module
from typing import TYPE_CHECKING

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
    from moldau.client.queue.message import AsyncQueueMessage, QueueMessage
    from moldau.client.queue.outgoing import Outgoing
    from moldau.client.queue.sync import QueueClient
    from moldau.client.queue.sync_worker import Worker
    from moldau.client.queue.worker import AsyncWorker

__version__ = "0.1.0"

# The broker and the command line import this package too, and need none of it.
_HOMES = {
    "AckMode": "kafka.producer_config",
    "Admin": "kafka.admin",
    "AsyncAdmin": "kafka.async_admin",
    "AsyncConsumer": "kafka.async_consumer",
    "AsyncDelivery": "kafka.async_delivery",
    "AsyncProducer": "kafka.async_producer",
    "AsyncQueueClient": "queue.client",
    "AsyncQueueMessage": "queue.message",
    "AsyncTransaction": "kafka.async_producer",
    "AsyncWorker": "queue.worker",
    "BufferFullError": "errors",
    "ClientError": "errors",
    "Consumer": "kafka.consumer",
    "ConsumerConfig": "kafka.consumer_config",
    "Delivery": "kafka.deliveries",
    "DeliveryFailedError": "errors",
    "InvalidArgumentError": "errors",
    "LeaseLostError": "errors",
    "Message": "kafka.message",
    "NotFoundError": "errors",
    "OffsetResetPolicy": "kafka.consumer_config",
    "Outgoing": "queue.outgoing",
    "Producer": "kafka.producer",
    "ProducerConfig": "kafka.producer_config",
    "QueueClient": "queue.sync",
    "QueueMessage": "queue.message",
    "Receipt": "kafka.deliveries",
    "RejectedError": "errors",
    "SendFailedError": "errors",
    "TimedOutError": "errors",
    "Transaction": "kafka.transaction",
    "UnavailableError": "errors",
    "UnreachableError": "errors",
    "Worker": "queue.sync_worker",
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
    """Load what an application asks for, when it asks (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"moldau.client.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

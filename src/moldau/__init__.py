"""Moldau: a distributed, fault-tolerant message queue and log that speaks Kafka."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.client.admin import Admin
    from moldau.client.async_admin import AsyncAdmin
    from moldau.client.async_consumer import AsyncConsumer
    from moldau.client.async_delivery import AsyncDelivery
    from moldau.client.async_producer import AsyncProducer, AsyncTransaction
    from moldau.client.consumer import Consumer
    from moldau.client.consumer_config import ConsumerConfig, OffsetResetPolicy
    from moldau.client.deliveries import Delivery, Receipt
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
    from moldau.client.message import Message
    from moldau.client.producer import Producer
    from moldau.client.producer_config import AckMode, ProducerConfig
    from moldau.client.queue.client import AsyncQueueClient
    from moldau.client.queue.message import AsyncQueueMessage, QueueMessage
    from moldau.client.queue.outgoing import Outgoing
    from moldau.client.queue.sync import QueueClient
    from moldau.client.queue.sync_worker import Worker
    from moldau.client.queue.worker import AsyncWorker
    from moldau.client.transaction import Transaction

__version__ = "0.1.0"

# The broker and the command line import this package too, and need none of it.
_HOMES = {
    "AckMode": "producer_config",
    "Admin": "admin",
    "AsyncAdmin": "async_admin",
    "AsyncConsumer": "async_consumer",
    "AsyncDelivery": "async_delivery",
    "AsyncProducer": "async_producer",
    "AsyncQueueClient": "queue.client",
    "AsyncQueueMessage": "queue.message",
    "AsyncTransaction": "async_producer",
    "AsyncWorker": "queue.worker",
    "BufferFullError": "errors",
    "ClientError": "errors",
    "Consumer": "consumer",
    "ConsumerConfig": "consumer_config",
    "Delivery": "deliveries",
    "DeliveryFailedError": "errors",
    "InvalidArgumentError": "errors",
    "LeaseLostError": "errors",
    "Message": "message",
    "NotFoundError": "errors",
    "OffsetResetPolicy": "consumer_config",
    "Outgoing": "queue.outgoing",
    "Producer": "producer",
    "ProducerConfig": "producer_config",
    "QueueClient": "queue.sync",
    "QueueMessage": "queue.message",
    "Receipt": "deliveries",
    "RejectedError": "errors",
    "SendFailedError": "errors",
    "TimedOutError": "errors",
    "Transaction": "transaction",
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

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
        NotFoundError,
        RejectedError,
        TimedOutError,
        UnavailableError,
        UnreachableError,
    )
    from moldau.client.message import Message
    from moldau.client.producer import Producer
    from moldau.client.producer_config import AckMode, ProducerConfig
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
    "AsyncTransaction": "async_producer",
    "BufferFullError": "errors",
    "ClientError": "errors",
    "Consumer": "consumer",
    "ConsumerConfig": "consumer_config",
    "Delivery": "deliveries",
    "DeliveryFailedError": "errors",
    "InvalidArgumentError": "errors",
    "Message": "message",
    "NotFoundError": "errors",
    "OffsetResetPolicy": "consumer_config",
    "Producer": "producer",
    "ProducerConfig": "producer_config",
    "Receipt": "deliveries",
    "RejectedError": "errors",
    "TimedOutError": "errors",
    "Transaction": "transaction",
    "UnavailableError": "errors",
    "UnreachableError": "errors",
}

__all__ = [
    "AckMode",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncProducer",
    "AsyncTransaction",
    "BufferFullError",
    "ClientError",
    "Consumer",
    "ConsumerConfig",
    "Delivery",
    "DeliveryFailedError",
    "InvalidArgumentError",
    "Message",
    "NotFoundError",
    "OffsetResetPolicy",
    "Producer",
    "ProducerConfig",
    "Receipt",
    "RejectedError",
    "TimedOutError",
    "Transaction",
    "UnavailableError",
    "UnreachableError",
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

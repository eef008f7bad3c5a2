"""Owns how the queues of a broker are put together."""

from moldau.service.queues.service import QueueService


def open_queues() -> QueueService:
    return QueueService()

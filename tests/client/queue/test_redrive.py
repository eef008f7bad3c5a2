"""A redrive of the client: what it takes for the same dead letter."""

from types import SimpleNamespace
from typing import Any, cast

from harness.virtual_loop import run_virtually
from moldau.client.queue.redrive import RedriveProgress, redrive
from moldau.proto.v1 import queue_pb2 as pb


def letter(value: bytes, reason: bytes = b"bad") -> Any:
    headers = [
        ("moldau-dead-group", b"g"),
        ("moldau-dead-topic", b"t"),
        ("moldau-dead-partition", b"0"),
        ("moldau-dead-offset", b"7"),
        ("moldau-dead-reason", reason),
    ]
    return SimpleNamespace(key=b"k", value=value, headers=headers)


class Letters:
    """A worker that gets these letters at once."""

    def __init__(self, letters: list[Any]) -> None:
        self.letters = letters
        self.acked: list[bytes] = []

    async def poll(self, count: int, wait: float) -> list[Any]:
        found, self.letters = self.letters, []
        return found

    async def ack(self, messages: list[Any]) -> list[Any]:
        self.acked += [message.value for message in messages]
        return []


def test_a_double_is_dropped_and_another_message_of_the_same_origin_is_sent() -> None:
    sent: list[bytes] = []

    async def send_many(topic: str, messages: list[pb.OutgoingMessage]) -> list[Any]:
        sent.extend(message.value for message in messages)
        return []

    async def run() -> list[RedriveProgress]:
        steps = redrive(cast(Any, worker), send_many, group="g", limit=None, topics=["t"])
        return [step async for step in steps]

    worker = Letters([letter(b"made up"), letter(b"paid"), letter(b"paid", b"after a failover")])
    assert run_virtually(run()) == [RedriveProgress(2, 1, 0)]
    assert sent == [b"made up", b"paid"]
    assert sorted(worker.acked) == [b"made up", b"paid", b"paid"]

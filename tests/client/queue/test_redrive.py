"""A redrive of the client: what it takes for the same dead letter."""

from types import SimpleNamespace
from typing import Any, cast

from harness.virtual_loop import run_virtually
from moldau.client.errors import ClientError, RejectedError, SendFailedError
from moldau.client.queue.redrive import RedriveProgress, redrive
from moldau.model.errors import ErrorCode
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


def test_what_only_fits_without_its_earlier_deaths_is_sent_without_them() -> None:
    sent: list[tuple[bytes, bool]] = []

    async def send_many(topic: str, messages: list[pb.OutgoingMessage]) -> list[Any]:
        failures: dict[int, ClientError] = {}
        for index, message in enumerate(messages):
            remembers = any(one.key == "moldau-earlier-death" for one in message.headers)
            if remembers and message.value == b"large":
                failures[index] = RejectedError("too large", ErrorCode.MESSAGE_TOO_LARGE)
            else:
                sent.append((message.value, remembers))
        if failures:
            raise SendFailedError("some failed", failures, [], is_uncertain=False)
        return []

    async def run() -> list[RedriveProgress]:
        steps = redrive(cast(Any, worker), send_many, group="g", limit=None, topics=["t"])
        return [step async for step in steps]

    worker = Letters([letter(b"small"), letter(b"large"), letter(b"other")])
    assert run_virtually(run()) == [RedriveProgress(3, 0, 0)]
    assert sent == [(b"small", True), (b"other", True), (b"large", False)]
    assert sorted(worker.acked) == [b"large", b"other", b"small"]


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

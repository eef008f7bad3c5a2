"""A topic as a work queue: concurrent handlers, a message that fails, and its redrive.

Needs a broker with gRPC on localhost:8000, or at MOLDAU_GRPC.
"""

import threading
import uuid

from moldau import QueueClient, QueueMessage

topic = f"thumbnails-{uuid.uuid4().hex[:8]}"
group = f"{topic}.resizers"
broken = threading.Event()
broken.set()
done: list[str] = []


def resize(message: QueueMessage) -> None:
    """Returns: the message is acked. Raises: it is redelivered, and finally dead-lettered."""
    name = message.json()["file"]
    if name == "7.png" and broken.is_set():
        raise ValueError("no such file")
    done.append(name)


with QueueClient() as client:
    client.create_topic(topic, partitions=3)
    client.send_many(topic, [{"file": f"{number}.png"} for number in range(100)])
    client.send(topic, {"file": "late.png"}, delay=1.0)

    client.connect(group, topic, attempts=2, backoff=0.1).close()
    print(client.work(group, topic, resize, concurrency=8, idle=3.0))

    (dead,) = client.read_from(f"{group}.dead")
    print(dead.json(), "failed:", dict(dead.headers)["moldau-dead-reason"])

    broken.clear()
    for so_far in client.redrive(group, idle=1.0):
        print(so_far)
    print(client.work(group, topic, resize, idle=1.0))

assert sorted(done) == sorted(["late.png", *(f"{number}.png" for number in range(100))])
print("every file is done, once")

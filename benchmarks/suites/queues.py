"""Work queues over gRPC: messages sent, polled and acked; many workers; leases that run out."""

from __future__ import annotations

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic
from benchmarks.harness import free_port, run_client

STEPS = 5
BATCH = 100
HTTP_MESSAGES = 1000
WORKERS = 4
CROWD = 100
VISIBILITY_S = 2.0


def run(bench: Bench) -> None:
    grpc, http = free_port(), free_port()
    for flush in ("always", "never"):
        settings = {
            "MOLDAU_GRPC__ADDR": f"127.0.0.1:{grpc}",
            "MOLDAU_HTTP__ADDR": f"127.0.0.1:{http}",
        }
        with servers.moldau(bench.directory, flush=flush, settings=settings) as moldau:
            spec = {"grpc": f"127.0.0.1:{grpc}", "http_port": http, "size": 100}
            bench.step(f"queue: send, poll, ack in batches of {BATCH}, flush={flush}")
            for _ in range(bench.repetitions):
                with topic(moldau, PARTITIONS) as name:
                    bench.load(
                        f"queue.cycle.{flush}",
                        "queue-cycle",
                        moldau,
                        topic=name,
                        batch=BATCH,
                        workers=WORKERS,
                        count=bench.scale(100_000, 20_000),
                        **spec,
                    )
            bench.done()
            if flush == "always":
                _crowd(bench, moldau, spec)
                _redeliver(bench, moldau, spec)
            else:
                _protocols(bench, moldau, spec)


def _crowd(bench: Bench, moldau: servers.Running, spec: dict[str, object]) -> None:
    bench.step(f"queue: {CROWD} workers on one partition")
    for _ in range(bench.repetitions):
        with topic(moldau, 1) as name:
            full = {"topic": name, "workers": CROWD, "each": 20, **spec}
            sample = run_client("queue-share", {"port": moldau.port, **full}, moldau.server)
            bench.record("queue.share.with_work", sample.detail["with_work"])
            bench.record("queue.share.most", sample.detail["most"])
            bench.record("queue.share.msg_s", sample.messages_per_s)
    bench.done()


def _redeliver(bench: Bench, moldau: servers.Running, spec: dict[str, object]) -> None:
    bench.step("queue: messages come again when their leases run out")
    for _ in range(bench.repetitions):
        with topic(moldau, 1) as name:
            full = {"topic": name, "count": 200, "visibility_s": VISIBILITY_S, **spec}
            sample = run_client("queue-redeliver", {"port": moldau.port, **full}, moldau.server)
            bench.record("queue.redeliver.times", sample.detail["times"])
    bench.done()


def _protocols(bench: Bench, moldau: servers.Running, spec: dict[str, object]) -> None:
    """The same bodies through either protocol, in turns."""
    bench.step(f"bodies of {HTTP_MESSAGES:,} messages: HTTP against gRPC")
    count = bench.scale(400_000, 100_000)
    for _ in range(bench.repetitions):
        with topic(moldau, PARTITIONS) as name:
            grpc = bench.load(
                "queue.send",
                "queue-send",
                moldau,
                topic=name,
                batch=HTTP_MESSAGES,
                count=count,
                **spec,
            )
        with topic(moldau, PARTITIONS) as name:
            http = bench.load(
                "queue.http",
                "http-produce",
                moldau,
                topic=name,
                messages=HTTP_MESSAGES,
                connections=WORKERS,
                keyed=False,
                count=count,
                **spec,
            )
        bench.record("queue.http_ratio", http.messages_per_s / grpc.messages_per_s)
    bench.done()

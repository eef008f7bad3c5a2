"""Owns the connections of a worker process: they outlive tasks, as the process does.

Spark forks workers and uses them again and again for small batches, so that connecting and learning
what was decided would take longer than the work.
"""

import atexit
import time
from typing import Final

from moldau.client.kafka.client import KafkaClient
from moldau.model.ids import TopicId
from moldau.spark.sink.decisions import Ledger
from moldau.spark.sink.write_options import WriteOptions

ANSWER_SECONDS_MAX: Final = 20.0


class Clients:
    """For one cluster. Data and coordination have connections of their own: while batches are on
    their way, nothing else can be asked over the same one."""

    def __init__(self, options: WriteOptions) -> None:
        self.data = self._client(options)
        self.coordination = self._client(options)
        self.ledgers: dict[tuple[bytes | TopicId, str], Ledger] = {}
        """What is known of the decisions, by topic and query; only of the last ones used."""
        self.timeout_ms: int | None = None
        """Of transactions, once somebody asked."""

    @staticmethod
    def _client(options: WriteOptions) -> KafkaClient:
        # A broker that hangs must not use up all the patience there is for finding its successor.
        seconds_max = min(options.timeout_seconds, ANSWER_SECONDS_MAX)
        return KafkaClient(
            options.bootstrap,
            client_id=options.client_id,
            timeout=seconds_max,
            security=options.security,
        )

    @staticmethod
    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    def close(self) -> None:
        self.data.close()
        self.coordination.close()


_opened: Final[dict[tuple[object, ...], Clients]] = {}


def clients_of(options: WriteOptions) -> Clients:
    """Those of this process, opened when first used."""
    key = (
        *(options.bootstrap, options.security, options.client_id),
        *(options.timeout_seconds, options.decisions_topic),
    )
    found = _opened.get(key)
    if found is None:
        found = _opened[key] = Clients(options)
    return found


@atexit.register
def _close_all() -> None:
    for clients in _opened.values():
        clients.close()
    _opened.clear()

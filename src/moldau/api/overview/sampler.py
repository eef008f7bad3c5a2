"""Samples all brokers while somebody watches, and keeps the last overviews for all watchers.

One task serves every watcher of this broker. It begins with the first request and ends a minute
after the last; what is the same for several watchers is encoded once.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from moldau.api.overview.collector import SampleCollector
from moldau.api.overview.render import (
    Points,
    View,
    overview_of,
    shown_events,
    topics_named,
    without_topics,
)
from moldau.api.overview.sample import BrokerSample, decode_sample
from moldau.control.cluster_events import ClusterEvents
from moldau.control.cluster_scan import ClusterScan
from moldau.control.cluster_service import ClusterService
from moldau.control.event_watch import EventWatch
from moldau.model import log_events
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.malformed import MALFORMED
from moldau.model.overview import Overview
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 2.0
ANSWER_SECONDS_MAX: Final = 1.5
_LINGER_SECONDS: Final = 60.0
"""So long after the last request it goes on: the next one gets rates, and history."""
_FRESH_SECONDS: Final = 2 * EVERY_SECONDS
_encode: Final = msgspec.json.Encoder().encode


class Shown(NamedTuple):
    """An overview as one watcher got it."""

    tick: int
    event: int
    """The last event in it."""
    json: bytes


class OverviewSampler:
    def __init__(
        self,
        *,
        me: BrokerId,
        clock: Clock,
        cluster: ClusterService,
        scan: ClusterScan,
        events: ClusterEvents,
        watch: EventWatch,
        collector: SampleCollector,
        caller: PeerCaller,
    ) -> None:
        self._me = me
        self._clock = clock
        self._cluster = cluster
        self._scan = scan
        self._events = events
        self._watch = watch
        self.collector: Final = collector
        self._caller = caller
        self._points = Points()
        self._latest: Overview | None = None
        self._tick = 0
        self._last_event = 0
        """When the latest overview was made."""
        self._sampled_at = float("-inf")
        self._samples: dict[BrokerId, BrokerSample] = {}
        self._wanted_until = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._encoded: dict[tuple[int, frozenset[str]], bytes] = {}
        self._is_stopped = False

    async def watch_events(self) -> None:
        """Until cancelled: keeps what happens, whether somebody watches or not."""
        await self._watch.run()

    def stop(self) -> None:
        """The broker stops: all streams end."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
        self._wake()

    # ---- watchers

    async def latest(self, sees: Callable[[str], bool]) -> Shown:
        """With history and all events that are kept."""
        if self._latest is None or self._clock.monotonic() - self._sampled_at > _FRESH_SECONDS:
            await self._next(self._tick)
        self._keep_on()
        return self._shown(sees, -1)

    async def after(self, shown: Shown, sees: Callable[[str], bool]) -> Shown:
        """The next one, with the events since. Raises RefusedError when the broker stops."""
        await self._next(shown.tick)
        return self._shown(sees, shown.event)

    async def _next(self, tick: int) -> None:
        self._keep_on()
        while self._tick <= tick or self._latest is None:
            with self._waiter() as waiter:
                if not self._is_stopped:
                    await waiter
            if self._is_stopped:
                raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "The broker is stopping")

    @contextmanager
    def _waiter(self) -> Iterator[asyncio.Future[None]]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            yield waiter
        finally:
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _shown(self, sees: Callable[[str], bool], event: int) -> Shown:
        """`event`: the last one that the watcher has; -1: it has nothing."""
        latest = self._latest
        if latest is None:
            raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "The broker is starting")
        events = self._events.after(max(event, 0))
        # Those that happened since belong to the next overview.
        events = [each for each in events if each.id <= self._last_event]
        history = self._points.history() if event < 0 else None
        latest = replace(latest, events=shown_events(events), history=history)
        hidden = frozenset(name for name in topics_named(latest) if not sees(name))
        key = (event, hidden)
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = self._encoded[key] = _encode(without_topics(latest, hidden))
        return Shown(self._tick, self._last_event, encoded)

    # ---- the task

    def _keep_on(self) -> None:
        self._wanted_until = self._clock.monotonic() + _LINGER_SECONDS
        if self._task is None and not self._is_stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None

    async def _run(self) -> None:
        while self._clock.monotonic() < self._wanted_until:
            began = self._clock.monotonic()
            try:
                await self._sample()
            except Exception:
                log.exception("the overview is missing", extra=log_events.INTERNAL_ERROR())
            took = self._clock.monotonic() - began
            await asyncio.sleep(max(EVERY_SECONDS - took, EVERY_SECONDS / 4))

    async def _sample(self) -> None:
        image = self._cluster.image
        # Before the brokers are asked: one that dies meanwhile does not respond, and
        # is dead in the next overview.
        found = await asyncio.gather(*(self._ask(broker) for broker in image.brokers))
        scan = await self._scan.current()
        is_recent = self._clock.monotonic() - self._sampled_at < 5 * EVERY_SECONDS
        old = self._samples if is_recent else {}
        self._samples = {
            broker: sample
            for broker, sample in zip(image.brokers, found, strict=True)
            if sample is not None
        }
        view = View(
            at_ms=self._clock.wall_ms(),
            cluster_id=image.cluster_id,
            me=self._me,
            brokers=image.brokers,
            alive=self._cluster.alive,
            scan=scan,
            old=old,
            new=self._samples,
        )
        self._latest = overview_of(view)
        self._points.add(self._latest)
        self._last_event = self._events.last_id
        self._encoded.clear()
        self._sampled_at = self._clock.monotonic()
        self._tick += 1
        self._wake()

    async def _ask(self, broker: BrokerId) -> BrokerSample | None:
        try:
            if broker == self._me:
                return await self.collector.sample()
            if broker not in self._cluster.alive:
                return None
            reply = await self._caller.call(
                broker, PeerMethod.BROKER_SAMPLE, b"", ANSWER_SECONDS_MAX
            )
            return decode_sample(reply)
        except (RefusedError, *MALFORMED) as error:
            # Perhaps an older version, which has no such method.
            log.debug("broker %d did not send its sample: %s", broker, error)
            return None

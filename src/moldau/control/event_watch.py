"""Notices what happens in the cluster, and says it in `cluster_events`.

Each broker compares, twice a second, what it knows of brokers, controller and topics with what it
knew before; elections are reported to it. Much of the same kind becomes one line.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from moldau.control.cluster_events import ClusterEvents
from moldau.control.cluster_scan import ClusterScan
from moldau.control.cluster_service import ClusterService
from moldau.control.leader_announcements import Key, LeaderAnnouncements
from moldau.metadata.image import Broker, BrokerState, Image
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model import log_events
from moldau.model.clock import Clock
from moldau.model.ids import BrokerId
from moldau.model.words import counted

log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 10.0
"""After a look that failed: it is tried again, and logged again."""
_NEVER_SEEN_SECONDS: Final = 5.0
"""A broker that was never alive here is reported after so long: it may be starting."""
_LINES_MAX: Final = 5
"""Topics that get a line of their own, per round and kind; more become one line."""
_PARTITIONS_NAMED_MAX: Final = 10


class EventWatch:
    def __init__(
        self,
        *,
        me: BrokerId,
        clock: Clock,
        cluster: ClusterService,
        scan: ClusterScan,
        announcements: LeaderAnnouncements,
        events: ClusterEvents,
    ) -> None:
        self._me = me
        self._clock = clock
        self._cluster = cluster
        self._scan = scan
        self._events = events
        self._elected: dict[Key, BrokerId] = {}
        self._has_gathered = False
        self._image = cluster.image
        self._seen: set[BrokerId] = {me}
        self._expected_since: dict[BrokerId, float] = {}
        """Brokers that were never alive here, and when they were first looked for."""
        self._down: set[BrokerId] = set()
        self._controller = NO_LEADER_ID
        self._leaderless = self._late = 0
        self._late_before = self._leaderless_before = 0
        announcements.on_elected = self._on_elected

    def _on_elected(self, key: Key, leader: BrokerId) -> None:
        self._elected[key] = leader

    async def run(self) -> None:
        """Until cancelled. What happened before is not reported."""
        self._image = self._cluster.image
        self._controller = BrokerId(self._cluster.controller_id)
        self._elected.clear()
        while True:
            pause = _EVERY_SECONDS
            try:
                await self.look()
            except Exception:
                # Its task is one of the broker, which would stop: for a view, that is too much.
                log.exception("events are missing", extra=log_events.INTERNAL_ERROR())
                pause = _PAUSE_SECONDS
            await asyncio.sleep(pause)

    async def look(self) -> None:
        """Report what has changed since the last look."""
        before, self._image = self._image, self._cluster.image
        self._look_at_brokers(before.brokers, self._image.brokers)
        self._look_at_controller()
        if self._image is not before:
            self._look_at_topics(before, self._image)
        self._look_at_elections()
        await self._look_at_partitions()

    # ---- brokers

    def _look_at_brokers(
        self, before: Mapping[BrokerId, Broker], brokers: Mapping[BrokerId, Broker]
    ) -> None:
        alive = self._cluster.alive
        for number in sorted(brokers):
            broker, known = brokers[number], before.get(number)
            if known is None:
                self._say("broker_joined", f"broker {number} joined the cluster", number)
            elif broker.state is not known.state:
                if broker.state is BrokerState.DRAINING:
                    text = f"broker {number} is draining: its replicas move to other brokers"
                    self._say("broker_draining", text, number)
                else:
                    self._say("broker_kept", f"broker {number} is no longer draining", number)
            if number in alive:
                self._is_alive(number, restarted=known is not None and known.epoch != broker.epoch)
            elif number not in self._down and self._is_missed(number):
                self._down.add(number)
                self._say("broker_lost", f"broker {number} is not alive", number)
        for number in sorted(before.keys() - brokers.keys()):
            self._down.discard(number)
            self._seen.discard(number)
            self._expected_since.pop(number, None)
            self._say("broker_left", f"broker {number} left the cluster", number)

    def _is_alive(self, number: BrokerId, *, restarted: bool) -> None:
        if number in self._down:
            self._down.remove(number)
            self._say("broker_back", f"broker {number} is alive again", number)
        elif restarted and number in self._seen and number != self._me:
            self._say("broker_back", f"broker {number} was restarted", number)
        self._seen.add(number)
        self._expected_since.pop(number, None)

    def _is_missed(self, number: BrokerId) -> bool:
        now = self._clock.monotonic()
        waited = now - self._expected_since.setdefault(number, now)
        return number in self._seen or waited >= _NEVER_SEEN_SECONDS

    def _look_at_controller(self) -> None:
        before, self._controller = self._controller, BrokerId(self._cluster.controller_id)
        if self._controller == before:
            return
        if self._controller < 0:
            self._say("controller_lost", "there is no controller")
        else:
            text = f"broker {self._controller} is the controller"
            self._say("controller_elected", text, self._controller)

    # ---- topics

    def _look_at_topics(self, before: Image, after: Image) -> None:
        if before.topics_by_id is after.topics_by_id:
            return
        made = after.topics_by_id.keys() - before.topics_by_id.keys()
        gone = before.topics_by_id.keys() - after.topics_by_id.keys()
        if len(gone) > _LINES_MAX:
            self._say("topic_deleted", f"{counted(len(gone), 'topic')} were deleted")
        else:
            for name in sorted(before.topics_by_id[each].name for each in gone):
                self._say("topic_deleted", f"topic {name} was deleted", topic=name)
        if len(made) > _LINES_MAX:
            self._say("topic_created", f"{counted(len(made), 'topic')} were created")
        else:
            for topic in sorted((after.topics_by_id[each] for each in made), key=lambda t: t.name):
                count = counted(len(topic.partitions), "partition")
                text = f"topic {topic.name} was created, with {count}"
                self._say("topic_created", text, topic=topic.name)

    # ---- partitions

    def _look_at_elections(self) -> None:
        if not self._elected or not self._has_gathered:
            # They come in groups, and are said together.
            self._has_gathered = bool(self._elected)
            return
        elected, self._elected, self._has_gathered = self._elected, {}, False
        by_topic: dict[str, dict[BrokerId, list[int]]] = defaultdict(lambda: defaultdict(list))
        for (topic_id, index), leader in elected.items():
            topic = self._image.topic_by_id(topic_id)
            if topic is not None:
                by_topic[topic.name][leader].append(index)
        if len(by_topic) > _LINES_MAX:
            totals: dict[BrokerId, list[int]] = defaultdict(list)
            for leaders in by_topic.values():
                for leader, indexes in leaders.items():
                    totals[leader].append(len(indexes))
            for leader, counts in sorted(totals.items()):
                what = f"{counted(sum(counts), 'partition')} of {counted(len(counts), 'topic')}"
                self._say("leader_elected", _new_leader(what, sum(counts), leader), leader)
            return
        for name, leaders in sorted(by_topic.items()):
            for leader, indexes in sorted(leaders.items()):
                text = _new_leader(_partitions(name, sorted(indexes)), len(indexes), leader)
                self._say("leader_elected", text, leader, topic=name)

    async def _look_at_partitions(self) -> None:
        condition = (await self._scan.current()).condition
        # Said when two looks in a row see it: an election takes a moment.
        late, self._late_before = (
            min(condition.under_replicated, self._late_before),
            condition.under_replicated,
        )
        leaderless, self._leaderless_before = (
            min(condition.leaderless, self._leaderless_before),
            condition.leaderless,
        )
        if leaderless and not self._leaderless:
            text = f"{counted(leaderless, 'partition')} without a leader"
            self._say("partitions_leaderless", text)
        elif self._leaderless and not condition.leaderless:
            self._say("partitions_led", "all partitions have a leader again")
        if late and not self._late:
            self._say("under_replicated", f"{counted(late, 'partition')} under-replicated")
        elif self._late and not condition.under_replicated:
            self._say("in_sync", "all replicas are in sync again")
        self._leaderless = leaderless or (self._leaderless if condition.leaderless else 0)
        self._late = late or (self._late if condition.under_replicated else 0)

    def _say(
        self, kind: str, text: str, broker: BrokerId | None = None, topic: str | None = None
    ) -> None:
        self._events.add(kind, text, broker=broker, topic=topic)


def _new_leader(what: str, count: int, leader: BrokerId) -> str:
    return f"{what} {'has' if count == 1 else 'have'} a new leader: broker {leader}"


def _partitions(topic: str, indexes: Sequence[int]) -> str:
    if len(indexes) == 1:
        return f"partition {indexes[0]} of {topic}"
    shown = ", ".join(str(index) for index in indexes[:_PARTITIONS_NAMED_MAX])
    if len(indexes) > _PARTITIONS_NAMED_MAX:
        shown += f" and {len(indexes) - _PARTITIONS_NAMED_MAX} more"
    return f"{len(indexes)} partitions of {topic} ({shown})"

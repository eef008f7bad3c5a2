"""All who use transactions in one world, and the verdict on them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from faults.checker import check
from sim.clients.list_append import ListAppend, Lists
from sim.clients.reader import COMMITTED, Reader
from sim.clients.saver import Saver
from sim.clients.stable import find_unstable
from sim.clients.transaction_admin import TransactionAdmin
from sim.clients.transactional import Application, TransactionalProducer
from sim.clients.transformer import Transformer, judge_once
from sim.clients.wire import Place
from sim.cluster import Cluster
from sim.history import History
from sim.process import ClientProcess
from sim.scene import Violation
from sim.workload import TopicWanted, Workload, raise_unless_clean

INPUT: Final = "txn-in"
OUTPUT: Final = "txn-out"
OTHER: Final = "txn-log"
LISTS: Final = "txn-lists"
SAVED: Final = "txn-saved"
_PARTITIONS: Final = 2


class Transactions(Workload):
    """Producers, transformers, those who append to lists, and readers of both kinds."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        scene = self.scene
        self._written = scene.new_history("written")
        """What transactional producers did, and what those saw who read what is committed."""
        self._all = scene.new_history("all")
        """What those saw who read everything."""
        self._output = scene.new_history("output")
        self._lists = Lists(_places(LISTS))
        self._readers: list[tuple[Reader, ClientProcess]] = []
        self._transformers: list[Transformer] = []
        self._appenders: list[ListAppend] = []

    @property
    def _has_writers(self) -> bool:
        return bool(self.plan.transactional or self.plan.transformers)

    def topics(self) -> list[TopicWanted]:
        names: list[str] = []
        if self._has_writers:
            names += [INPUT, OTHER]
        if self.plan.transformers:
            names.append(OUTPUT)
        if self.plan.list_append:
            names.append(LISTS)
        if self.plan.savers:
            names.append(SAVED)
        return [TopicWanted(name, _PARTITIONS) for name in names]

    def begin(self) -> None:
        plan, scene = self.plan, self.scene
        applications: list[Application] = []
        if self._has_writers:
            places = [*_places(INPUT), *_places(OTHER)]
            for number in range(1, max(1, plan.transactional) + 1):
                process = scene.process(f"t{number}")
                applications.append(
                    TransactionalProducer(
                        scene, process, places, self._written, pause_seconds=plan.pause_seconds
                    )
                )
            for place in places:
                self._read(place, self._written, COMMITTED)
                self._read(place, self._all, 0)
        shares = _shares(_places(INPUT), plan.transformers)
        for number, share in enumerate(shares, 1):
            process = scene.process(f"x{number}")
            transformer = Transformer(
                scene, process, share, OUTPUT, pause_seconds=plan.pause_seconds
            )
            self._transformers.append(transformer)
        for place in _places(OUTPUT) if shares else ():
            self._read(place, self._output, COMMITTED)
        for number in range(1, plan.list_append + 1):
            process = scene.process(f"a{number}")
            appender = ListAppend(scene, process, self._lists, pause_seconds=plan.pause_seconds)
            self._appenders.append(appender)
        applications += [*self._transformers, *self._appenders]
        for number in range(1, plan.savers + 1):
            process = scene.process(f"saver{number}")
            applications.append(Saver(scene, process, (SAVED, 0)))
        for application in applications:
            application.process.run(application.run())
        if applications:
            process = scene.process("txn-admin")
            names = [application.name for application in applications]
            all_places = [place for topic in self.topics() for place in _places(topic.name)]
            process.run(TransactionAdmin(scene, process, names, all_places).run())

    def _read(self, place: Place, history: History, isolation: int) -> None:
        kind = "rc" if isolation == COMMITTED else "ru"
        process = self.scene.process(f"{kind}-{place[0]}-{place[1]}")
        reader = Reader(self.scene, process, place, isolation=isolation, history=history)
        self._readers.append((reader, process))
        process.run(reader.run())

    def stages(self) -> Iterator[Callable[[], None]]:
        """What is to be finished, one after the other, once nobody begins anything new."""
        yield self._finish_applications
        yield self._finish_readers

    def _finish_applications(self) -> None:
        for application in (*self._transformers, *self._appenders):
            application.process.run(application.finish())

    def _finish_readers(self) -> None:
        for reader, process in self._readers:
            process.run(reader.finish())

    def judge(self) -> None:
        """Raises Violation."""
        if self._has_writers:
            raise_unless_clean("transactions", check(self._written))
            if wrong := list(find_unstable(self._written)):
                raise Violation(f"transactions: {len(wrong)}, e.g. {wrong[0]}")
            raise_unless_clean(
                "transactions, uncommitted", check([*_uncommitted(self._written), *self._all])
            )
        if self._transformers:
            inputs = (
                event for event in self._written if event.get("tp", "").startswith(f"{INPUT}/")
            )
            raise_unless_clean("transformed", judge_once(inputs, self._output, OUTPUT))
        if self._appenders and (wrong := self._lists.judge()):
            raise Violation(f"lists: {len(wrong)}, e.g. {wrong[0]}")


def _places(topic: str) -> list[Place]:
    return [(topic, index) for index in range(_PARTITIONS)]


def _shares(places: Sequence[Place], count: int) -> list[list[Place]]:
    shares = [list(places[number::count]) for number in range(count)]
    return [share for share in shares if share]


def _uncommitted(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What was acked is there, also if it was aborted later."""
    for event in events:
        if event["op"] in ("send", "ack"):
            yield {name: value for name, value in event.items() if name != "t"}
    yield {"op": "txn", "t": "all", "outcome": "unknown"}

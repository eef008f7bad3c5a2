"""Jepsen's list-append over transactions, and the verdict on it.

A transaction appends elements of its own to some lists and reads some. A list is what one who reads
what is committed finds of its key in a partition, in the order of offsets. Whatever was read, up to
the last stable offset of that time, is how the list begins to the end of days. What is committed is
there, what is aborted never was. Kafka does not promise that the parts of a transaction in several
partitions are seen at the same time, so neither is that asked for here.
"""

from collections.abc import Sequence
from typing import Final

from sim.clients.reader import COMMITTED, LATEST, list_offset
from sim.clients.transactional import Application, Instance
from sim.clients.transactor import Aborting, Ended, Transactor
from sim.clients.transformer import fetch_committed
from sim.clients.wire import Kafka, Place
from sim.process import ClientProcess
from sim.scene import Scene

KEYS: Final = 5
_RESTART_CHANCE: Final = 0.2


class Lists:
    """What all of them did and saw."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = list(places)
        self.appends: dict[str, list[tuple[int, str]]] = {}
        """Key and element of each append, by transaction, in order."""
        self.outcomes: dict[str, str] = {}
        self.reads: list[tuple[str, int, tuple[str, ...]]] = []
        """Who read which key, and what."""

    def place(self, key: int) -> Place:
        return self.places[key % len(self.places)]

    def judge(self) -> list[str]:
        """What is wrong, once each list was read to its end; the last reads are those."""
        lists: dict[int, tuple[str, ...]] = {}
        for who, key, elements in self.reads:
            if who == LAST:
                lists[key] = elements
        wrong = []
        for key, elements in lists.items():
            if len(set(elements)) < len(elements):
                wrong.append(f"list {key} holds an element twice")
            wrong += self._out_of_order(key, elements)
        for who, key, elements in self.reads:
            if lists[key][: len(elements)] != elements:
                at = next(
                    number
                    for number, element in enumerate(elements)
                    if lists[key][number : number + 1] != (element,)
                )
                wrong.append(f"{who} read {elements[at]} at place {at} of list {key}")
        return [*wrong, *self._torn(lists)]

    def _out_of_order(self, key: int, elements: tuple[str, ...]) -> list[str]:
        last: dict[str, int] = {}
        wrong = []
        for element in elements:
            name, _, number = element.rpartition(":")
            if last.get(name, -1) >= int(number):
                wrong.append(f"{element} comes after {name}:{last[name]} in list {key}")
            last[name] = int(number)
        return wrong

    def _torn(self, lists: dict[int, tuple[str, ...]]) -> list[str]:
        found = {(key, element) for key, elements in lists.items() for element in elements}
        wrong = []
        for transaction, appends in self.appends.items():
            outcome = self.outcomes.get(transaction, "abort")
            there = [append for append in appends if append in found]
            found.difference_update(there)
            if outcome == "abort" and there:
                wrong.append(f"{there[0]} of {transaction} is there, and was aborted")
            elif len(there) < len(appends) and (there or outcome == "commit"):
                wrong.append(f"{transaction}: {len(there)} of {len(appends)} are there: {outcome}")
        return wrong + [f"{element} was never appended to list {key}" for key, element in found]


LAST: Final = "the end"


class ListAppend(Application):
    """One who appends and reads."""

    def __init__(
        self, scene: Scene, process: ClientProcess, lists: Lists, *, pause_seconds: float
    ) -> None:
        super().__init__(scene, process, process.name, pause_seconds=pause_seconds)
        self.lists = lists

    def instance(self, name: str, kafka: Kafka, transactor: Transactor) -> "_Appends":
        return _Appends(self, name, kafka, transactor)

    async def finish(self) -> None:
        """Nobody appends any more: read all lists."""
        instance = self.begin_instance()
        assert isinstance(instance, _Appends)
        for key in range(KEYS):
            place = self.lists.place(key)
            while True:
                stable = await list_offset(instance.kafka, place, LATEST, COMMITTED)
                end = await list_offset(instance.kafka, place, LATEST)
                if end is not None and stable == end:
                    break
                await self.scene.pause(self.rng, 0.2)
            await instance.read(key, LAST)


class _Appends(Instance):
    def __init__(
        self, application: ListAppend, name: str, kafka: Kafka, transactor: Transactor
    ) -> None:
        super().__init__(application, name, kafka, transactor)
        self._lists = application.lists
        self._known: dict[Place, tuple[int, list[str]]] = {}
        """How far a partition is read, and what is there."""
        self._appended = 0

    async def turn(self) -> None:
        self._transactions += 1
        is_whole = False
        try:
            for _ in range(self.rng.randint(1, 4)):
                if self.rng.random() < 0.5:
                    await self.read(self.rng.randrange(KEYS), self.name)
                else:
                    await self._append()
            is_whole = True
        except Aborting:
            pass
        except Ended:
            return
        if self._transaction in self._lists.appends:
            outcome = await self.end(is_whole=is_whole)
            self._lists.outcomes[self._transaction] = outcome

    def crashed(self) -> None:
        if self.transactor.is_commit_asked:
            self._lists.outcomes[self._transaction] = "unknown"

    async def _append(self) -> None:
        values: dict[Place, list[str]] = {}
        appends = self._lists.appends.setdefault(self._transaction, [])
        for key in self.rng.sample(range(KEYS), self.rng.randint(1, 3)):
            element = f"{self.name}:{self._appended}"
            self._appended += 1
            appends.append((key, element))
            values.setdefault(self._lists.place(key), []).append(f"{key}={element}")
        await self.transactor.write(values)

    async def read(self, key: int, who: str) -> None:
        place = self._lists.place(key)
        while (stable := await list_offset(self.kafka, place, LATEST, COMMITTED)) is None:
            await self.scene.pause(self.rng, 0.2)
        position, values = self._known.get(place, (0, []))
        if self.rng.random() < _RESTART_CHANCE or who == LAST:
            position, values = 0, []
        while position < stable:
            found = await fetch_committed(self.scene, self.kafka, place, position, self.rng)
            if found is None:
                await self.scene.pause(self.rng, 0.2)
                continue
            records, position = found
            values = values + [value for _, value in records]
        self._known[place] = (position, values)
        parts = (value.partition("=") for value in values)
        elements = tuple(element for found_key, _, element in parts if found_key == str(key))
        self._lists.reads.append((who, key, elements))
        self.scene.count("list reads")

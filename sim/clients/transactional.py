"""Applications that write in transactions: what they do, crash, and come back as."""

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sim.clients.transactor import Aborting, Ended, Identity, Transactor
from sim.clients.wire import Kafka, Place
from sim.history import History
from sim.process import ClientProcess
from sim.scene import Scene

TIMEOUTS_MS: Final = (4_000, 15_000, 60_000)
_LEFT_MS_MAX: Final = 15_000
"""Of a transaction that is left open: not every world shall wait for a minute."""
_RECORDS_MAX: Final = 4
_ABORT_CHANCE: Final = 0.2
_CRASH_CHANCE: Final = 0.05
_ZOMBIE_CHANCE: Final = 0.04
_HANG_CHANCE: Final = 0.01
_AT_ONCE_CHANCE: Final = 0.1


class Application:
    """One or, while a zombie is about, several instances of one transactional id."""

    def __init__(
        self, scene: Scene, process: ClientProcess, name: str, *, pause_seconds: float
    ) -> None:
        self.scene = scene
        self.process = process
        self.name = name
        self.rng: random.Random = process.rng
        self.identity = Identity(name, self.rng.choice(TIMEOUTS_MS))
        self.pause_seconds = pause_seconds
        self._instances = 0
        self._older: list[asyncio.Task[None]] = []

    def instance(self, name: str, kafka: Kafka, transactor: Transactor) -> "Instance":
        raise NotImplementedError

    def begin_instance(self) -> "Instance":
        self._instances += 1
        name = f"{self.name}.{self._instances}"
        kafka = self.scene.kafka(self.process)
        kafka.name, kafka.rng = name, self.rng
        transactor = Transactor(
            self.scene, kafka, self.rng, self.identity, rises=self.rng.random() < 0.6
        )
        return self.instance(name, kafka, transactor)

    async def run(self) -> None:
        """One instance after the other; some of those before stay, and are locked out."""
        while not self.scene.is_over:
            instance = self.begin_instance()
            task = asyncio.get_running_loop().create_task(instance.run())
            await self._wait_for(task)
            if task.done():
                task.result()
                instance.crash()
            else:
                self.scene.count("zombies")
                self._older.append(task)
        for task in self._older:
            await task
        # Whatever is left open is aborted by the next one.
        last = self.begin_instance()
        await last.transactor.begin()
        await last.leave()

    async def finish(self) -> None:
        """What is left to do when nobody begins anything new."""

    async def _wait_for(self, task: "asyncio.Task[None]") -> None:
        """Until it ends, or is no longer looked at."""
        while not task.done():
            await asyncio.wait([task], timeout=1.0)
            if self.rng.random() < _ZOMBIE_CHANCE:
                return


class Instance:
    """Transactions one after the other, until the end or a crash."""

    def __init__(
        self, application: Application, name: str, kafka: Kafka, transactor: Transactor
    ) -> None:
        self.application = application
        self.name = name
        self.kafka = kafka
        self.transactor = transactor
        self.rng = application.rng
        self.scene = application.scene
        self._transactions = 0

    @property
    def _transaction(self) -> str:
        """What the one at hand is called in a history."""
        return f"{self.name}/{self._transactions}"

    def crash(self) -> None:
        self.kafka.close()

    async def run(self) -> None:
        """Returns if it crashed, was locked out, or all is over."""
        if not await self._crashing(self.begin()):
            return
        while not self.scene.is_over and self.transactor.is_ready:
            if not await self._crashing(self.turn()):
                self.crashed()
                return
            if self.rng.random() < _AT_ONCE_CHANCE:
                await self._abort_nothing()
            else:
                await self.scene.pause(self.rng, self.application.pause_seconds)

    async def _abort_nothing(self) -> None:
        """Right after the last end, whose markers may not be written yet."""
        if self.transactor.is_ready:
            await self.transactor.end(is_commit=False)

    async def _crashing(self, work: Coroutine[Any, Any, None]) -> bool:
        """False: it crashed on the way."""
        if self.scene.is_over or self.rng.random() > _CRASH_CHANCE:
            await work
            return True
        try:
            async with asyncio.timeout(self.rng.expovariate(1 / 0.1)):
                await work
        except TimeoutError:
            self.scene.count("crashes")
            return False
        return True

    async def begin(self) -> None:
        await self.transactor.begin()

    async def turn(self) -> None:
        raise NotImplementedError

    def crashed(self) -> None:
        """In the middle of a turn."""

    async def leave(self) -> None:
        """The last that is done for a transactional id."""

    async def end(self, *, is_whole: bool) -> str:
        """Commit or, by chance, abort."""
        if self.rng.random() < _HANG_CHANCE:
            await self.scene.pause(self.rng, self.application.identity.timeout_ms / 1000)
        is_commit = is_whole and self.rng.random() >= _ABORT_CHANCE
        outcome = await self.transactor.end(is_commit=is_commit)
        self.scene.count(f"txn {outcome}")
        return outcome


class TransactionalProducer(Application):
    """Writes some records to some partitions in each transaction, with all of it on record."""

    def __init__(
        self,
        scene: Scene,
        process: ClientProcess,
        places: Sequence[Place],
        history: History,
        *,
        pause_seconds: float,
    ) -> None:
        super().__init__(scene, process, process.name, pause_seconds=pause_seconds)
        self.places = list(places)
        self.history = history

    def instance(self, name: str, kafka: Kafka, transactor: Transactor) -> Instance:
        return _Writes(self, name, kafka, transactor)


class _Writes(Instance):
    def __init__(
        self,
        application: TransactionalProducer,
        name: str,
        kafka: Kafka,
        transactor: Transactor,
    ) -> None:
        super().__init__(application, name, kafka, transactor)
        self._writer = application
        self._sent = 0

    async def turn(self) -> None:
        self._transactions += 1
        is_whole = False
        try:
            for _ in range(self.rng.randint(1, 3)):
                await self._write()
            is_whole = True
        except Aborting:
            pass
        except Ended:
            self._writer.history.add("txn", t=self._transaction, outcome="abort")
            return
        self._writer.history.add("x-ending", t=self._transaction)
        outcome = await self.end(is_whole=is_whole)
        self._writer.history.add("txn", t=self._transaction, outcome=outcome)

    def crashed(self) -> None:
        outcome = "unknown" if self.transactor.is_commit_asked else "abort"
        self._writer.history.add("txn", t=self._transaction, outcome=outcome)

    async def leave(self) -> None:
        """With a transaction that nobody ends: its timeout does, or readers wait without end."""
        if self.application.identity.timeout_ms > _LEFT_MS_MAX:
            return
        self._transactions += 1
        with suppress(Aborting, Ended):
            await self._write()
        self._writer.history.add("txn", t=self._transaction, outcome="abort")

    async def _write(self) -> None:
        places = self._writer.places
        chosen = self.rng.sample(places, self.rng.randint(1, min(3, len(places))))
        sent = {place: self._numbers(place) for place in chosen}
        offsets = await self.transactor.write(
            {place: [f"{self.name}:{number}" for number in sent[place]] for place in chosen}
        )
        self._acked(sent, offsets)

    def _numbers(self, place: Place) -> list[int]:
        numbers = []
        for _ in range(self.rng.randint(1, _RECORDS_MAX)):
            self._writer.history.add(
                "send",
                p=self.name,
                n=self._sent,
                tp=f"{place[0]}/{place[1]}",
                t=self._transaction,
            )
            numbers.append(self._sent)
            self._sent += 1
        return numbers

    def _acked(self, sent: Mapping[Place, list[int]], offsets: Mapping[Place, int]) -> None:
        for place, numbers in sent.items():
            for index, number in enumerate(numbers):
                offset = offsets[place] + index if offsets[place] >= 0 else -1
                self._writer.history.add("ack", p=self.name, n=number, o=offset)

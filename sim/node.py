"""One simulated broker: its host and disk, which last, and its process, which does not."""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from moldau.server.broker import BrokerServer
from moldau.server.config.schema import ServerConfig
from moldau.server.info import BrokerInfo
from moldau.server.run import EXIT_INTERNAL_ERROR, serve
from sim.grpc import SimGrpcServer
from sim.loop import SimLoop
from sim.machine import SimClock, SimMachine
from sim.network import Network, SimSocket, SimSockets
from sim.scheduler import Scheduler
from sim.simdisk import SimDisk


@dataclass
class DiskRates:
    """What the disk of a broker is like."""

    flush_seconds: float = 0.000_4
    stall_share: float = 0.0
    stall_seconds: float = 2.0


@dataclass(eq=False)
class Process:
    """One start."""

    loop: SimLoop
    machine: SimMachine
    main: Any = None
    server: BrokerServer | None = None
    info: BrokerInfo | None = None
    exit_code: int | None = None
    failure: BaseException | None = None
    has_disk_failed: bool = False
    """So it may end with what tells of that."""
    internal_errors: list[BaseException] = field(default_factory=list)
    """Why it gave up: what it reported as a bug of its own."""
    exceptions: list[dict[str, Any]] = field(default_factory=list)


class Node:
    """A broker of the cluster."""

    def __init__(
        self,
        *,
        name: str,
        address: str,
        scheduler: Scheduler,
        network: Network,
        config: Callable[[], ServerConfig],
        seed: str,
        flush_seconds: float,
        on_end: Callable[["Node", Process], None],
        on_made: Callable[["Node", BrokerServer], None],
    ) -> None:
        self.name = name
        self.number = int(name.rpartition("-")[2])
        self.address = address
        self._scheduler = scheduler
        self._network = network
        self._config = config
        self._seed = seed
        self._on_end = on_end
        self._on_made = on_made
        self.host = network.host(address)
        self.disk = SimDisk()
        self.rng = random.Random(f"{seed}/{name}/disk")
        self.disk_rates = DiskRates(flush_seconds=flush_seconds)
        self._broker_id = -1
        self.skew_ms = 0
        self.starts = 0
        self.process: Process | None = None
        self.failures = 0
        """Processes that gave up by themselves."""

    @property
    def is_running(self) -> bool:
        return self.process is not None

    @property
    def server(self) -> BrokerServer | None:
        return self.process.server if self.process is not None else None

    @property
    def broker_id(self) -> int:
        """-1 until it has one."""
        server = self.server
        if server is not None:
            self._broker_id = getattr(server, "_broker_id", self._broker_id)
        return self._broker_id

    @property
    def is_ready(self) -> bool:
        return self.process is not None and self.process.info is not None

    def metadata_voters(self) -> tuple[int, ...]:
        """As this broker knows them; no API returns it."""
        if not self.is_ready or self.server is None:
            return ()
        return tuple(self.server._metadata_replica.members.voters)

    # ---- its process

    def start(self) -> Process:
        assert self.process is None
        self.starts += 1
        self._network.switched_on(self.host)
        rng = random.Random(f"{self._seed}/{self.name}/{self.starts}")
        loop = SimLoop(self._scheduler, rng, self.name)
        loop.new_socket = lambda: SimSocket(self._network, self.host, loop)
        sockets = SimSockets(self._network, self.host, loop)
        machine = SimMachine(
            loop=loop,
            disk=self.disk,
            sockets=sockets,
            clock=SimClock(loop, self.skew_ms),
            rng=random.Random(f"{self._seed}/{self.name}/{self.starts}/machine"),
            host_name=self.name,
            flush_delay=self._flush_delay,
            grpc_server=lambda on, entrance: SimGrpcServer(on, entrance, sockets),
        )
        process = self.process = Process(loop, machine)
        self.disk.on_flush = lambda: loop.spend(self._flush_delay())
        loop.work_delay = self._work_delay
        loop.on_exception = process.exceptions.append
        loop.on_crash = self._crashed
        process.main = loop.begin(self._run(process))
        return process

    async def _run(self, process: Process) -> None:
        def on_ready(info: BrokerInfo) -> None:
            process.info = info

        def on_made(server: BrokerServer) -> None:
            process.server = server
            give_up = server._report_internal_error

            def note(error: BaseException) -> None:
                process.internal_errors.append(error)
                give_up(error)

            server._report_internal_error = note
            self._on_made(self, server)

        try:
            process.exit_code = await serve(
                self._config(), process.machine, on_ready=on_ready, on_made=on_made
            )
        except Exception as error:
            if self.process is not process:
                # Killed: what its coroutines do when they are closed is nobody's failure.
                return
            process.failure = error
            process.exit_code = EXIT_INTERNAL_ERROR
        self._scheduler.after(0.0, lambda: self._ended(process))

    def _ended(self, process: Process) -> None:
        """By itself."""
        if self.process is process:
            self.failures += process.failure is not None
            process.has_disk_failed = self.disk.flush_failures > 0
            self.kill()
            self._on_end(self, process)

    def _crashed(self) -> None:
        """The power was cut inside a write."""
        if self.process is not None:
            process = self.process
            self.power_off()
            self._on_end(self, process)

    def kill(self) -> None:
        """As by `kill -9`: the system keeps what it was given, and closes the connections."""
        process = self.process
        if process is None:
            return
        self.process = None
        # Closed coroutines must not write: this start's view of the disk ends first.
        self.disk = self.disk.survive()
        self._network.process_ended(self.host, is_power_cut=False)
        process.loop.die()

    def power_off(self) -> None:
        """With the machine: what was not flushed is lost, or torn."""
        process = self.process
        if process is not None and process.loop.after_turn is not None:
            # Inside a turn, it may have sent others what is new in it.
            process.loop.after_turn()
        self.process = None
        self.disk = self.disk.crash(self.rng)
        self._network.process_ended(self.host, is_power_cut=True)
        if process is not None:
            process.loop.die()

    def stop(self) -> None:
        """As by SIGTERM."""
        if self.process is not None:
            self.process.loop.signalled(signal.SIGTERM)

    def pause(self, seconds: float) -> None:
        """As by SIGSTOP and SIGCONT."""
        if self.process is not None:
            self.process.loop.paused_until = self._scheduler.now + seconds

    def set_skew(self, milliseconds: int) -> None:
        """How wrong its wall clock is."""
        self.skew_ms = milliseconds
        if self.process is not None:
            self.process.machine.sim_clock.skew_ms = milliseconds

    def wipe(self) -> None:
        """Its disk is replaced by an empty one."""
        self.power_off()
        self.disk = SimDisk()

    # ---- its disk

    def _flush_delay(self) -> float:
        rates, rng = self.disk_rates, self.rng
        if rates.stall_share and rng.random() < rates.stall_share:
            return rng.random() * rates.stall_seconds
        return rates.flush_seconds * (0.5 + rng.random())

    def _work_delay(self) -> float:
        return self.disk_rates.flush_seconds * (0.5 + self.rng.random())

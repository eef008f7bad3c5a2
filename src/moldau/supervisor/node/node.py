"""Starts, restarts and stops the processes of one node. One loop, which sleeps most of the time.

A process that crashes is restarted with backoff. One that crashes again and again, or exits with a
configuration or storage error, stops the whole node with its exit code: who watches the node has to
learn of it, and half a node looks well from outside.
"""

import logging
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from moldau.model import log_events as events
from moldau.model.exit_codes import ExitCode
from moldau.supervisor.backoff import FINAL_CODES, Backoff
from moldau.supervisor.child import STOP_SECONDS_MAX, Child, describe_exit

log = logging.getLogger(__name__)

DEATHS_MAX: Final = 5
"""In a row, without a healthy period between them: then the node stops."""
_STOP_APART_SECONDS: Final = 5.0
"""A process gets SIGTERM when the one before has stopped, or after this: so that leaderships
need not move twice, and a large node still stops in time."""


class Wakeups(Protocol):
    """Signals that were received."""

    stop: bool

    def fileno(self) -> int: ...

    def clear(self) -> None: ...


class Start(Struct, frozen=True):
    """How a process begins."""

    number: int
    through: int | None
    """The process of the node whose cluster it joins; None: it has one, or gets one as
    configured."""
    http: str
    """Where that process says that it serves HTTP."""


class _Process:
    def __init__(self, number: int, *, has_cluster: bool, is_removed: bool) -> None:
        self.number = number
        self.has_cluster = has_cluster
        self.is_removed = is_removed
        self.child: Child | None = None
        self.backoff = Backoff()
        self.start_at = 0.0
        self.ready_at: float | None = None
        self.signalled_at: float | None = None
        """When it got SIGTERM."""
        self.is_killed = False

    @property
    def is_ready(self) -> bool:
        return self.child is not None and self.child.is_ready

    @property
    def broker(self) -> str:
        found = None if self.child is None else self.child.broker_id
        return "" if found is None else f" (broker {found})"


class Node:
    """The processes of one node."""

    def __init__(
        self,
        clusters: Sequence[bool],
        removed: Iterable[int],
        *,
        start: Callable[[Start], Child],
        was_removed: Callable[[int], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clusters`: of each process, whether its directory belongs to a cluster; `removed`: those
        whose broker has left it. `start` may raise OSError."""
        gone = set(removed)
        self._processes = [
            _Process(number, has_cluster=found, is_removed=number in gone)
            for number, found in enumerate(clusters, 1)
        ]
        self._start = start
        self._was_removed = was_removed
        self._now = now
        self._stopping = False
        self._exit_code = 0

    # ---- the loop

    def run(
        self,
        signals: Wakeups,
        on_ready: Callable[[list[Child]], None],
        on_stop: Callable[[], None] = lambda: None,
    ) -> int:
        """Until a signal, or a process that cannot work, has stopped all; returns the exit code.
        `on_ready` is called once, when all processes are ready."""
        was_ready = False
        try:
            while True:
                if signals.stop and not self._stopping:
                    log.info("stopping the node")
                    self._stop_all(0)
                if self._stopping:
                    on_stop()
                self.step()
                if self._stopping and not self._running:
                    return self._exit_code
                if not was_ready and self.is_ready:
                    was_ready = True
                    on_ready([one.child for one in self._processes if one.child is not None])
                self._sleep(signals)
        finally:
            self.close()

    def step(self) -> None:
        """Handle what happened, and do what is due."""
        for process in self._processes:
            self._check(process)
        if self._stopping:
            self._stop_next()
            return
        for process in self._processes:
            self._start_if_due(process)
        if all(process.is_removed for process in self._processes):
            log.info("no broker of this node is left in the cluster: it stops")
            self._stop_all(0)
        elif not self._running:
            self._stop_if_none_can_start()

    def _stop_if_none_can_start(self) -> None:
        left = [process for process in self._processes if not process.is_removed]
        if any(process.has_cluster or self._is_first(process) for process in left):
            return
        removed = ", ".join(str(one.number) for one in self._processes if one.is_removed)
        log.critical(
            "nothing of this node can start: the broker of process %s was removed from the "
            "cluster, and the others have none yet: the node stops; delete what is in the data "
            "directory of process %s but the directories of other processes, and process 1 starts "
            "as configured",
            removed,
            removed,
            extra=events.NODE_FAILED(node_process=left[0].number, exit_code=ExitCode.CONFIG),
        )
        self._stop_all(ExitCode.CONFIG)

    def _sleep(self, signals: Wakeups) -> None:
        sources: list[Wakeups | Child] = [signals]
        sources += [one.child for one in self._running if one.child and one.child.pipe_open]
        select.select(sources, [], [], self._seconds_until_due())
        signals.clear()

    def _seconds_until_due(self) -> float | None:
        """None: nothing is, until something happens."""
        now = self._now()
        due = [one.start_at for one in self._processes if one.child is None and one.start_at > now]
        for process in self._running:
            if process.signalled_at is not None:
                due += [
                    process.signalled_at + _STOP_APART_SECONDS,
                    process.signalled_at + STOP_SECONDS_MAX,
                ]
        later = [at - now for at in due if at > now]
        return min(later) if later else None

    @property
    def _running(self) -> list[_Process]:
        return [process for process in self._processes if process.child is not None]

    @property
    def _has_ready(self) -> bool:
        return any(process.is_ready for process in self._processes)

    @property
    def is_ready(self) -> bool:
        left = [process for process in self._processes if not process.is_removed]
        return bool(left) and all(process.is_ready for process in left)

    def close(self) -> None:
        """Whatever happened, nothing is left running."""
        for process in self._running:
            child = process.child
            if child is not None:
                child.kill()
                while child.poll() is None:
                    time.sleep(0.01)
                child.close()
            process.child = None

    # ---- one process

    def _check(self, process: _Process) -> None:
        child = process.child
        if child is None:
            return
        if child.pipe_open and child.read():
            process.ready_at, process.has_cluster = self._now(), True
            log.info("process %d%s is ready (pid %d)", process.number, process.broker, child.pid)
        code = child.poll()
        if code is not None:
            self._ended(process, code)
            child.close()
            process.child = None
        elif (
            process.signalled_at is not None
            and not process.is_killed
            and self._now() >= process.signalled_at + STOP_SECONDS_MAX
        ):
            process.is_killed = True
            log.warning(
                "process %d did not stop within %g s: killing it",
                process.number,
                STOP_SECONDS_MAX,
                extra=events.PROCESS_ENDED(node_process=process.number),
            )
            child.kill()

    def _ended(self, process: _Process, code: int) -> None:
        what = f"process {process.number}{process.broker}"
        if self._stopping:
            if code == -signal.SIGTERM and process.signalled_at is not None:
                # It was asked to stop before it could listen for that: it had opened nothing.
                code = 0
            if code:
                log.warning(
                    "%s %s while it stopped",
                    what,
                    describe_exit(code),
                    extra=events.PROCESS_ENDED(node_process=process.number, exit_code=code),
                )
                self._exit_code = self._exit_code or _as_exit_code(code)
            return
        if self._was_removed(process.number):
            process.is_removed = True
            log.info("%s has left the cluster; the others go on without it", what)
            return
        delay = process.backoff.died(self._now(), process.ready_at)
        # One that could not join yet must not stop those that serve: the cluster may be busy.
        may_join = code == ExitCode.CONFIG and not process.has_cluster and self._has_ready
        is_final = code in FINAL_CODES and not may_join
        if is_final or (process.backoff.deaths >= DEATHS_MAX and not may_join):
            times = "" if is_final else f" for the {process.backoff.deaths}th time"
            log.critical(
                "%s %s%s: the node stops",
                what,
                describe_exit(code),
                times,
                extra=events.NODE_FAILED(node_process=process.number, exit_code=code),
            )
            self._stop_all(_as_exit_code(code))
            return
        process.start_at = self._now() + delay
        log.warning(
            "%s %s: restarting in %g s",
            what,
            describe_exit(code),
            delay,
            extra=events.PROCESS_ENDED(node_process=process.number, exit_code=code),
        )

    def _is_first(self, process: _Process) -> bool:
        """Whether it finds or founds a cluster as configured: no other process is in one."""
        return process.number == 1 and not any(
            one.has_cluster for one in self._processes if one is not process
        )

    def _start_if_due(self, process: _Process) -> None:
        if process.child is not None or process.is_removed or self._now() < process.start_at:
            return
        others = [one for one in self._processes if one is not process]
        ready = next((one for one in others if one.is_ready), None)
        if ready is None and not (process.has_cluster or self._is_first(process)):
            # It joins one of the others as soon as that is in the cluster.
            return
        process.ready_at = None
        start = Start(process.number, None, "")
        if not process.has_cluster and ready is not None and ready.child is not None:
            start = Start(process.number, ready.number, ready.child.http or "")
        try:
            process.child = self._start(start)
        except OSError as error:
            # Too many processes: may be transient.
            delay = process.backoff.died(self._now(), None)
            process.start_at = self._now() + delay
            log.warning(
                "cannot start process %d: %s; retrying in %g s",
                process.number,
                error.strerror or error,
                delay,
                extra=events.PROCESS_ENDED(node_process=process.number),
            )

    # ---- stop

    def _stop_all(self, exit_code: int) -> None:
        """In reverse order: the process that bootstrapped the cluster stops last."""
        self._stopping = True
        self._exit_code = exit_code

    def _stop_next(self) -> None:
        running = self._running
        signalled = [one.signalled_at for one in running if one.signalled_at is not None]
        if signalled and self._now() < max(signalled) + _STOP_APART_SECONDS:
            return
        for process in reversed(running):
            if process.signalled_at is None and process.child is not None:
                process.signalled_at = self._now()
                process.child.terminate()
                return


def _as_exit_code(code: int) -> int:
    """Of the node. A signal, and an end that nobody asked for, are errors of a process."""
    return code if code > 0 else ExitCode.INTERNAL_ERROR

"""Owns the supervision of a cluster on one machine: who should run, who does, and what follows.

One loop, no threads. A broker that dies is started again, a little later each time; one that says
that its configuration or its disk is wrong is left down, since nothing would change. Requests from
other terminals come through the same loop (supervise_control.py) and only change what is wanted.
"""

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.signals import Stop
from moldau.client.processes import started_at
from moldau.supervisor.child import Child, CommandOf, broker_command, log_path
from moldau.supervisor.control import ControlServer
from moldau.supervisor.ports import nth_ports, plan_ports
from moldau.supervisor.state import ClusterState, Member, Ports, save_state

FINAL_CODES = frozenset({ExitCode.USAGE, ExitCode.STORAGE, ExitCode.CONFIG})
"""After these a broker is not started again by itself: it would only say the same."""

_STEP_SECONDS = 0.1
_BACKOFF_SECONDS_FIRST = 0.5
_BACKOFF_SECONDS_MAX = 30.0
_HEALTHY_SECONDS = 30.0
_STOP_SECONDS_MAX = 40.0
_HURRY_SECONDS_MAX = 5.0

DOWN = frozenset({"stopped", "killed", "failed"})
"""States that only a person ends."""


class _Watched:
    """A broker, and what is wanted of it."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.child: Child | None = None
        self.wanted = True
        self.start_again = False
        """It was asked to stop in order to be started again."""
        self.start_at = 0.0
        self.kill_at: float | None = None
        self.deaths = 0
        """In a row; counted anew once it was ready for a while."""
        self.ready_at: float | None = None
        self.is_forgotten = False


class Supervisor:
    """Runs the brokers of a cluster. The caller holds the lock of the directory."""

    def __init__(
        self,
        directory: Path,
        state: ClusterState,
        *,
        notify: Callable[[str], None],
        command_of: CommandOf = broker_command,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self.state = state
        self._notify = notify
        self._command_of = command_of
        self._now = now
        self._watched = [_Watched(member) for member in state.brokers]
        self._changed = True
        self._is_behind = False
        """The file could not be written."""
        self.stopping = False
        for member in state.brokers:
            _forget_process(member)
            member.state, member.reason = "starting", ""
        self._control = ControlServer(directory)
        state.control = str(self._control.path)
        state.supervisor_pid = os.getpid()
        state.supervisor_started = started_at(os.getpid())

    # ---- the loop

    def run(self, stop: Stop, on_settled: Callable[[], object]) -> bool:
        """Until everything was stopped on request; False if no broker came up at all.

        `on_settled` is called once, when it is known of every broker whether it came up.
        """
        settled = False
        try:
            while not (self.stopping and self.is_down):
                if stop and not self.stopping:
                    self.stop_all()
                self.step()
                if not settled and not self.stopping and self.is_settled:
                    settled = True
                    if not any(member.state == "ready" for member in self.state.brokers):
                        return False
                    on_settled()
            return True
        finally:
            self.close()

    def step(self, seconds_max: float = _STEP_SECONDS) -> None:
        """Wait for something to happen, for a moment, and do what follows."""
        pipes = [watched.child for watched in self._watched if watched.child is not None]
        sources: list[ControlServer | Child] = [
            self._control,
            *(child for child in pipes if child.pipe_open),
        ]
        readable, _, _ = select.select(sources, [], [], seconds_max)
        if self._control in readable:
            self._control.serve_one(self._answer)
        for watched in self._watched:
            self._look_after(watched)
        self._watched = [w for w in self._watched if w.child is not None or not w.is_forgotten]
        if self.stopping:
            self._stop_next()
        else:
            for watched in self._watched:
                self._start_if_due(watched)
        if self._changed:
            self._save()

    def _save(self) -> None:
        try:
            save_state(self._directory, self.state)
        except OSError as error:
            # A full disk must not end the brokers with it: tried again at the next step.
            if not self._is_behind:
                self._notify(f"cluster.json cannot be written: {error.strerror or error}")
            self._is_behind = True
        else:
            self._changed = self._is_behind = False

    @property
    def is_down(self) -> bool:
        return all(watched.child is None for watched in self._watched)

    @property
    def is_settled(self) -> bool:
        """Every broker is up, or will not come up by itself."""
        states = {member.state for member in self.state.brokers}
        if states <= DOWN | {"ready"}:
            return True
        # Who waits to be let in waits for nothing if nobody is there or on the way.
        return states <= DOWN | {"waiting"}

    def close(self) -> None:
        """End what still runs, in a hurry if need be, and leave the file in order."""
        for watched in self._watched:
            if watched.child is not None:
                watched.child.terminate()
        deadline = time.monotonic() + _HURRY_SECONDS_MAX
        for watched in self._watched:
            child = watched.child
            if child is None:
                continue
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            if child.poll() is None:
                child.kill()
                while child.poll() is None:
                    time.sleep(0.02)
            child.close()
            watched.child = None
            self._set(watched, "stopped")
            _forget_process(watched.member)
        self._control.close()
        self.state.control = ""
        self.state.supervisor_pid = self.state.supervisor_started = None
        self._save()

    # ---- one broker

    def _look_after(self, watched: _Watched) -> None:
        child = watched.child
        if child is None:
            return
        if child.pipe_open and child.read():
            self._became_ready(watched, child)
        code = child.poll()
        if code is None:
            if watched.kill_at is not None and self._now() >= watched.kill_at:
                watched.kill_at = None
                self._notify(f"broker {watched.member.id} does not stop: killed")
                child.kill()
            return
        watched.child = None
        self._ended(watched, child, code)

    def _became_ready(self, watched: _Watched, child: Child) -> None:
        watched.ready_at = self._now()
        watched.member.joined = True
        self.state.cluster_id = child.cluster_id or self.state.cluster_id
        if watched.member.state == "starting":
            self._set(watched, "ready")
            self._notify(f"broker {watched.member.id} is ready (pid {child.pid})")

    def _ended(self, watched: _Watched, child: Child, code: int) -> None:
        member = watched.member
        child.close()
        _forget_process(member)
        watched.kill_at = None
        if watched.start_again:
            watched.start_again, watched.wanted = False, True
            watched.start_at = self._now()
            self._set(watched, "starting")
        elif not watched.wanted or self.stopping:
            self._set(watched, "killed" if member.state == "killed" else "stopped")
            self._notify(f"broker {member.id} is down")
        elif code in FINAL_CODES:
            self._leave_down(watched, "failed", child.reason(code))
        elif code == 0:
            self._leave_down(watched, "stopped", "it was stopped by a signal from elsewhere")
        else:
            self._back_off(watched, child.reason(code))

    def _leave_down(self, watched: _Watched, state: str, reason: str) -> None:
        watched.wanted = False
        self._set(watched, state, reason)
        self._notify(f"broker {watched.member.id} is left down: {'; '.join(reason.splitlines())}")

    def _back_off(self, watched: _Watched, reason: str) -> None:
        now = self._now()
        if watched.ready_at is not None and now - watched.ready_at >= _HEALTHY_SECONDS:
            watched.deaths = 0
        delay = min(_BACKOFF_SECONDS_FIRST * 2**watched.deaths, _BACKOFF_SECONDS_MAX)
        # Bounded, or the power above would grow for ever.
        watched.deaths = min(watched.deaths + 1, 16)
        watched.start_at = now + delay
        self._set(watched, "restarting", reason)
        text = reason.partition("\n")[0]
        self._notify(f"broker {watched.member.id} died ({text}), starts again in {delay:g} s")

    def _start_if_due(self, watched: _Watched) -> None:
        if watched.child is not None or not watched.wanted or self._now() < watched.start_at:
            return
        member = watched.member
        others = [other for other in self.state.brokers if other is not member]
        join = next((other.http for other in others if other.state == "ready"), None)
        if member.joined:
            # Its directory knows the way. But if somebody emptied that, it must not found a
            # cluster of its own under the old address: the others say whose number it is.
            join = join or next((other.http for other in others), None)
        elif member is self.state.brokers[0] and not any(other.joined for other in others):
            join = None
        elif join is None:
            self._set(watched, "waiting")
            return
        command = self._command_of(self._directory, self.state, member, join)
        watched.ready_at = None
        try:
            child = watched.child = Child(command, log_path(self._directory, member))
        except OSError as error:
            # Too many processes, no room for its log: that may pass.
            self._back_off(watched, f"it could not be started: {error.strerror or error}")
            return
        member.pid, member.started = child.pid, child.started
        self._set(watched, "starting", member.reason)

    def _set(self, watched: _Watched, state: str, reason: str = "") -> None:
        member = watched.member
        if (member.state, member.reason) != (state, reason):
            member.state, member.reason = state, reason
            self._changed = True

    # ---- what is asked for

    def stop_all(self) -> None:
        """Stop every broker, the last one first: the one that founded the cluster goes last."""
        self.stopping = True
        self._notify("stopping")

    def _stop_next(self) -> None:
        running = [watched for watched in self._watched if watched.child is not None]
        if running and running[-1].member.state != "stopping":
            self._terminate(running[-1])
        for watched in self._watched:
            if watched.child is None and watched.member.state not in DOWN:
                self._set(watched, "stopped")

    def _terminate(self, watched: _Watched) -> None:
        if watched.child is None:
            return
        watched.child.terminate()
        watched.kill_at = self._now() + _STOP_SECONDS_MAX
        self._set(watched, "stopping")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._act(str(request.get("verb")), request)
        except CommandError as error:
            return {"error": str(error), "hint": error.hint}
        except (KeyError, TypeError, ValueError):
            return {"error": "the supervisor does not understand the request"}
        return {
            "stopping": self.stopping,
            "settled": self.is_settled,
            "state": msgspec.to_builtins(self.state),
        }

    def _act(self, verb: str, request: dict[str, Any]) -> None:
        if verb == "status":
            return
        if verb == "stop" and request.get("id") is None:
            if not self.stopping:
                self.stop_all()
            return
        if self.stopping:
            raise CommandError("the cluster is being stopped")
        if verb == "add":
            self._add(request)
            return
        member = self.state.member(int(request["id"]))
        watched = next(watched for watched in self._watched if watched.member is member)
        match verb:
            case "stop":
                watched.wanted = watched.start_again = False
                if watched.child is None:
                    self._set(watched, "stopped")
                else:
                    self._terminate(watched)
            case "kill":
                self._kill(watched)
            case "forget":
                self._forget(watched)
            case "restart":
                watched.wanted = True
                watched.deaths, watched.start_at = 0, self._now()
                if watched.child is not None:
                    watched.start_again = True
                    self._terminate(watched)
                else:
                    self._set(watched, "starting")
            case _:
                raise CommandError(f"the supervisor does not know {verb!r}")

    def _kill(self, watched: _Watched) -> None:
        if watched.child is None:
            raise CommandError(
                f"broker {watched.member.id} does not run ({watched.member.state})",
                hint=f"start it: moldau cluster restart {watched.member.id}",
            )
        watched.wanted = watched.start_again = False
        self._set(watched, "killed")
        watched.child.kill()

    def _forget(self, watched: _Watched) -> None:
        """It is no member any more: stop it, and do not start it with the others."""
        if len(self.state.brokers) == 1:
            raise CommandError("the last broker of a cluster cannot be removed")
        self.state.brokers.remove(watched.member)
        watched.wanted = watched.start_again = False
        watched.is_forgotten = True
        self._terminate(watched)
        self._changed = True

    def _add(self, request: dict[str, Any]) -> None:
        number = self.state.next_id
        usual = nth_ports(self.state.ports, number)
        ports = Ports(
            kafka=_given(request, "kafka", usual.kafka),
            raft=_given(request, "raft", usual.raft),
            http=_given(request, "http", usual.http),
            grpc=_given(request, "grpc", usual.grpc),
        )
        existing = [member.ports for member in self.state.brokers]
        (planned,) = plan_ports([(number, ports)], existing)
        member = Member(id=number, ports=planned, directory=f"broker-{number}", state="waiting")
        self.state.brokers.append(member)
        self.state.next_id += 1
        self._watched.append(_Watched(member))
        self._changed = True


def _given(request: dict[str, Any], field: str, usual: int) -> int:
    value = request.get(field)
    return usual if value is None else int(value)


def _forget_process(member: Member) -> None:
    member.pid = member.started = None

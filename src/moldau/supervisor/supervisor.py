"""Supervises the brokers of a cluster on one machine: starts, restarts and stops them.

One loop, no threads. A broker that crashes is restarted with backoff. One that exits with a
configuration or storage error stays down, since a restart would fail again. Requests of other
processes (control.py) are handled in the same loop and only change the desired state.
"""

import contextlib
import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from moldau.client.processes import started_at
from moldau.model.play import PAUSE_SECONDS, PAUSE_SECONDS_MAX, PlayAction, PlayKind
from moldau.supervisor.backoff import FINAL_CODES, Backoff
from moldau.supervisor.child import STOP_SECONDS_MAX, Child, CommandOf, broker_command, log_path
from moldau.supervisor.control import ControlServer
from moldau.supervisor.errors import SupervisorError
from moldau.supervisor.play_faults import FaultsWriter
from moldau.supervisor.playground import printable
from moldau.supervisor.ports import nth_ports, plan_ports
from moldau.supervisor.state import ClusterState, Member, Ports, save_state

_STEP_SECONDS = 0.1
_HURRY_SECONDS_MAX = 5.0
_LATER_SECONDS_MAX = 5.0
_LATER_MAX = 100

DOWN = frozenset({"stopped", "killed", "failed"})
"""States that last until a user starts the broker."""


class _Watched:
    """A broker, its process and its desired state."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.child: Child | None = None
        self.wanted = True
        self.start_again = False
        """It is being stopped for a restart."""
        self.start_at = 0.0
        self.kill_at: float | None = None
        self.backoff = Backoff()
        self.ready_at: float | None = None
        self.is_forgotten = False
        self.resume_at: float | None = None
        """Set while it is paused."""


class Supervisor:
    """Runs the brokers of a cluster. The caller holds the directory's lock."""

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
        self._save_failed = False
        self.stopping = False
        self._faults = FaultsWriter(directory)
        self._later: list[tuple[float, dict[str, Any]]] = []
        """Requests that are acted upon at a time."""
        for member in state.brokers:
            _forget_process(member)
            member.state, member.reason = "starting", ""
        self._control = ControlServer(directory)
        state.control = str(self._control.path)
        state.supervisor_pid = os.getpid()
        state.supervisor_started = started_at(os.getpid())

    # ---- the loop

    def run(self, stop: Callable[[], bool], on_settled: Callable[[], object]) -> bool:
        """Run until `stop` or a request ends it; False if no broker became ready.

        `on_settled` is called once, when every broker is ready or has failed.
        """
        settled = False
        try:
            while not (self.stopping and self.is_down):
                if stop() and not self.stopping:
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
        """Wait for output, requests or the timeout, then handle what happened."""
        pipes = [watched.child for watched in self._watched if watched.child is not None]
        sources: list[ControlServer | Child] = [
            self._control,
            *(child for child in pipes if child.pipe_open),
        ]
        readable, _, _ = select.select(sources, [], [], seconds_max)
        if self._control in readable:
            self._control.serve_one(self._handle)
        for watched in self._watched:
            self._check(watched)
        self._watched = [w for w in self._watched if w.child is not None or not w.is_forgotten]
        self._act_on_later()
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
            # A full disk must not stop the brokers. Retried at the next step.
            if not self._save_failed:
                self._notify(f"cannot write cluster.json ({error.strerror or error}); retrying")
            self._save_failed = True
        else:
            self._changed = self._save_failed = False

    @property
    def is_down(self) -> bool:
        return all(watched.child is None for watched in self._watched)

    @property
    def is_settled(self) -> bool:
        """Every broker is ready, or will not start without a user."""
        states = {member.state for member in self.state.brokers}
        if states <= DOWN | {"ready", "paused"}:
            return True
        # A broker that waits to join waits in vain if no other one runs or starts.
        return states <= DOWN | {"waiting"}

    def close(self) -> None:
        """Stop running processes, kill them after a short timeout, and save the state."""
        for watched in self._watched:
            if watched.child is not None:
                watched.child.terminate()
                if watched.resume_at is not None:
                    watched.child.resume()
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
        with contextlib.suppress(SupervisorError):
            self._faults.clear()
        self.state.control = ""
        self.state.supervisor_pid = self.state.supervisor_started = None
        self._save()

    # ---- one broker

    def _check(self, watched: _Watched) -> None:
        child = watched.child
        if child is None:
            return
        if child.pipe_open and child.read():
            self._became_ready(watched, child)
        code = child.poll()
        if code is None:
            if watched.kill_at is not None and self._now() >= watched.kill_at:
                watched.kill_at = None
                limit = f"{STOP_SECONDS_MAX:g} s"
                self._notify(f"broker {watched.member.id} did not stop within {limit}; killing it")
                child.kill()
            if watched.resume_at is not None and self._now() >= watched.resume_at:
                self._resume(watched)
            return
        watched.child = None
        watched.resume_at = None
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
            self._notify(f"broker {member.id} stopped")
        elif code in FINAL_CODES:
            self._leave_down(watched, "failed", child.reason(code))
        elif code == 0:
            self._leave_down(
                watched, "stopped", "stopped by a signal that the supervisor did not send"
            )
        else:
            self._back_off(watched, child.reason(code))

    def _leave_down(self, watched: _Watched, state: str, reason: str) -> None:
        watched.wanted = False
        self._set(watched, state, reason)
        self._notify(
            f"broker {watched.member.id} stays down: {'; '.join(reason.splitlines())}; "
            f"start it again: moldau cluster restart {watched.member.id}"
        )

    def _back_off(self, watched: _Watched, reason: str) -> None:
        now = self._now()
        delay = watched.backoff.died(now, watched.ready_at)
        watched.start_at = now + delay
        self._set(watched, "restarting", reason)
        text = reason.partition("\n")[0]
        self._notify(f"broker {watched.member.id} crashed ({text}); restarting in {delay:g} s")

    def _start_if_due(self, watched: _Watched) -> None:
        if watched.child is not None or not watched.wanted or self._now() < watched.start_at:
            return
        member = watched.member
        others = [other for other in self.state.brokers if other is not member]
        join = next((other.http for other in others if other.state == "ready"), None)
        if member.joined:
            # Its directory knows the other brokers. If that was deleted, it must not bootstrap a
            # second cluster under the old address: the others know whose id it is.
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
            # Too many processes, or no space for its log: may be transient.
            self._back_off(watched, f"could not be started: {error.strerror or error}")
            return
        member.pid, member.started = child.pid, child.started
        self._set(watched, "starting", member.reason)

    def _set(self, watched: _Watched, state: str, reason: str = "") -> None:
        member = watched.member
        if (member.state, member.reason) != (state, reason):
            member.state, member.reason = state, reason
            self._changed = True

    # ---- requests

    def stop_all(self) -> None:
        """Stop every broker, in reverse order: the one that bootstrapped the cluster stops last."""
        self.stopping = True
        self._notify("stopping all brokers")

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
        if watched.resume_at is not None:
            # A paused process gets no SIGTERM.
            watched.resume_at = None
            watched.child.resume()
        watched.kill_at = self._now() + STOP_SECONDS_MAX
        self._set(watched, "stopping")

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._act(str(request.get("verb")), request)
            if "by" in request:
                self._notify(
                    f"{_action_text(request)}: requested by {printable(str(request['by']))}"
                )
        except SupervisorError as error:
            return {"error": str(error), "hint": error.hint, "code": int(error.code)}
        except (KeyError, TypeError, ValueError):
            return {"error": "invalid request to the supervisor"}
        now = self._now()
        return {
            "play": {
                "resumes_in_ms": {
                    str(each.member.id): max(0, round((each.resume_at - now) * 1000))
                    for each in self._watched
                    if each.resume_at is not None
                },
                "faults": msgspec.to_builtins(self._faults.current),
            },
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
            raise SupervisorError("the cluster is stopping")
        if verb == "add":
            self._add(request)
            return
        if verb == "heal":
            self._heal()
            return
        member = self.state.member(int(request["id"]))
        watched = next(watched for watched in self._watched if watched.member is member)
        if not self._played(verb, watched, request):
            self._act_on(verb, watched)

    def _act_on(self, verb: str, watched: _Watched) -> None:
        match verb:
            case "stop":
                watched.wanted = watched.start_again = False
                if watched.child is None:
                    self._set(watched, "stopped")
                else:
                    self._terminate(watched)
            case "forget":
                self._forget(watched)
            case "restart":
                self._start_again(watched)
            case _:
                raise SupervisorError(f"unknown request {verb!r} to the supervisor")

    # ---- faults on purpose

    def _played(self, verb: str, watched: _Watched, request: dict[str, Any]) -> bool:
        """Whether it was a request for a fault."""
        member = watched.member
        match verb:
            case "kill":
                self._check_running(watched)
                if not self._postponed(request):
                    self._kill(watched)
            case "pause":
                self._check_running(watched)
                seconds = int(request.get("seconds", PAUSE_SECONDS))
                if not 1 <= seconds <= PAUSE_SECONDS_MAX:
                    raise SupervisorError(f"a pause lasts 1 to {PAUSE_SECONDS_MAX} s")
                if not self._postponed(request):
                    self._pause(watched, seconds)
            case "resume":
                if watched.resume_at is None:
                    raise SupervisorError(f"broker {member.id} is not paused ({member.state})")
                self._resume(watched)
            case "link":
                other = self.state.member(int(request["other"]))
                self._faults.set_link(member.id, other.id, is_cut=bool(request["is_cut"]))
            case "disk":
                self._faults.set_disk(member.id, int(request["delay_ms"]))
            case _:
                return False
        return True

    def _check_running(self, watched: _Watched) -> None:
        if watched.child is None:
            raise SupervisorError(
                f"broker {watched.member.id} is not running ({watched.member.state})",
                hint=f"start it: moldau cluster restart {watched.member.id}",
            )

    def _kill(self, watched: _Watched) -> None:
        if watched.child is None:
            return
        watched.wanted = watched.start_again = False
        watched.resume_at = None
        self._set(watched, "killed")
        watched.child.kill()

    def _pause(self, watched: _Watched, seconds: int) -> None:
        if watched.child is None:
            return
        if watched.member.state not in ("ready", "paused"):
            raise SupervisorError(
                f"broker {watched.member.id} is not ready ({watched.member.state})",
                hint="retry in a few seconds",
            )
        watched.child.pause()
        watched.resume_at = self._now() + seconds
        self._set(watched, "paused", f"for {seconds} s")

    def _resume(self, watched: _Watched) -> None:
        watched.resume_at = None
        if watched.child is not None:
            watched.child.resume()
            if watched.member.state == "paused":
                self._set(watched, "ready")
            self._notify(f"broker {watched.member.id} goes on after its pause")

    def _heal(self) -> None:
        """Ends what play did; brokers that crash are started again anyway."""
        self._faults.clear()
        self._later.clear()
        for watched in self._watched:
            if watched.resume_at is not None:
                self._resume(watched)
            elif watched.child is None and watched.member.state in DOWN:
                self._start_again(watched)

    def _postponed(self, request: dict[str, Any]) -> bool:
        """Whether the request is for a moment later: its sender is who it will hit."""
        seconds = min(float(request.get("after_seconds", 0)), _LATER_SECONDS_MAX)
        if seconds <= 0:
            return False
        if len(self._later) >= _LATER_MAX:
            raise SupervisorError("too many requests wait for their time", hint="retry")
        self._later.append((self._now() + seconds, {**request, "after_seconds": 0}))
        return True

    def _act_on_later(self) -> None:
        now = self._now()
        due = [request for at, request in self._later if at <= now]
        self._later = [(at, request) for at, request in self._later if at > now]
        for request in due:
            # Its broker may have ended by itself, and everything may be stopping.
            with contextlib.suppress(SupervisorError):
                self._act(str(request["verb"]), request)

    def _start_again(self, watched: _Watched) -> None:
        watched.wanted = True
        watched.backoff.reset()
        watched.start_at = self._now()
        if watched.child is not None:
            watched.start_again = True
            self._terminate(watched)
        else:
            self._set(watched, "starting")

    def _forget(self, watched: _Watched) -> None:
        """It has left the cluster: stop it and remove it from the state file."""
        if len(self.state.brokers) == 1:
            raise SupervisorError("cannot remove the last broker of a cluster")
        self._faults.forget(watched.member.id)
        self.state.brokers.remove(watched.member)
        watched.wanted = watched.start_again = False
        watched.is_forgotten = True
        self._terminate(watched)
        self._changed = True

    def _add(self, request: dict[str, Any]) -> None:
        number = self.state.next_id
        given = {name: request.get(name) for name in Ports.__struct_fields__}
        chosen = {name: int(port) for name, port in given.items() if port is not None}
        ports = replace(nth_ports(self.state.ports, number), **chosen)
        existing = [member.ports for member in self.state.brokers]
        (planned,) = plan_ports([(number, ports)], existing)
        member = Member(id=number, ports=planned, directory=f"broker-{number}", state="waiting")
        self.state.brokers.append(member)
        self.state.next_id += 1
        self._watched.append(_Watched(member))
        self._changed = True


def _action_text(request: dict[str, Any]) -> str:
    """What a request of somebody who plays does. Raises KeyError, ValueError."""
    action = PlayAction(
        kind=PlayKind(request["verb"]),
        by="",
        broker=int(request.get("id", -1)),
        other=int(request.get("other", -1)),
        is_cut=bool(request.get("is_cut")),
        seconds=int(request.get("seconds", PAUSE_SECONDS)),
        delay_ms=int(request.get("delay_ms", 0)),
    )
    return str(action)


def _forget_process(member: Member) -> None:
    member.pid = member.started = None

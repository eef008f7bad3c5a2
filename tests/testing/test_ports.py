"""Free ports: none is handed out twice, and test processes side by side take different ones."""

import os
import subprocess
import sys

import pytest

from moldau.testing import ports as ports_module
from moldau.testing.ports import free_port_run, free_ports

pytestmark = pytest.mark.system


def test_no_port_is_handed_out_again_while_its_broker_may_be_down() -> None:
    ports = [port for _ in range(200) for port in free_ports(4)]
    assert len(set(ports)) == len(ports)


def test_all_ports_of_a_run_are_reserved() -> None:
    firsts = [free_port_run(4) for _ in range(20)]
    ports = [first + place for first in firsts for place in range(4)]
    ports += free_ports(50)
    assert len(set(ports)) == len(ports)


def test_test_processes_side_by_side_take_from_ranges_of_their_own() -> None:
    code = "from moldau.testing.ports import free_port_run, free_ports; print(*free_ports(300))"
    taken = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTEST_XDIST_WORKER": worker},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
        for worker in ("gw0", "gw1")
    ]
    assert not set(taken[0]) & set(taken[1])


def test_a_port_of_a_broker_that_is_down_is_not_given_to_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = free_ports(5)
    others = [port for port in range(min(ours), min(ours) + 1000) if port not in ours]
    code = (
        "from moldau.testing import ports; "
        f"ports._upcoming = iter({ours + others}); print(*ports.free_ports(5))"
    )

    def taken() -> list[int]:
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=dict(os.environ),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return list(map(int, run.stdout.split()))

    assert not set(taken()) & set(ours)
    # Nor to this one again; what was given long ago goes back.
    monkeypatch.setattr(ports_module, "_upcoming", iter(ours + others))
    assert not set(free_ports(5)) & set(ours)
    monkeypatch.undo()
    free_ports(ports_module._HELD_MAX)
    assert set(taken()) & set(ours)

"""The command line of a supervised broker."""

from pathlib import Path

import pytest
from supervised_world import cluster

from moldau.supervisor.child import broker_command


@pytest.mark.parametrize("play", [True, False])
def test_a_broker_may_be_played_with_only_if_its_cluster_is_started_so(play: bool) -> None:
    state = cluster(1)
    assert state.play
    state.play = play
    command = broker_command(Path("/data"), state, state.brokers[0], None)
    assert ("--play" in command) is play
    if play:
        assert command[command.index("--play") + 1] == "/data"

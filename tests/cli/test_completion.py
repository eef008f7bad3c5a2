"""The tab key."""

import shutil
import subprocess

import pytest
from tab_key import complete, offered

from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(cli, shell):
    outcome = cli("completion", shell)
    assert outcome.code == 0
    assert "_MOLDAU_COMPLETE" in outcome.out
    executable = shutil.which(shell)
    if executable:
        options = ["-n"] if shell != "fish" else ["--no-execute"]
        checked = subprocess.run(
            [executable, *options],
            input=outcome.out,
            text=True,
            capture_output=True,
            timeout=wait_seconds_max(),
        )
        assert checked.returncode == 0, checked.stderr


def test_an_unknown_shell_is_refused(cli):
    assert cli("completion", "tcsh").code == 2


def test_commands_and_options_are_completed():
    assert complete(["moldau", "con"]) == ["consume", "config"]
    assert "describe" in complete(["moldau", "topic", ""])
    assert "--from-beginning" in complete(["moldau", "consume", "--fr"])


def test_topics_are_completed_from_the_broker(mock_brokers, cli):
    assert cli("produce", "tabbed-topic", "-m", "x", "-b", mock_brokers).code == 0
    words = ["moldau", "consume", "tabbed"]
    assert offered(words, env={"MOLDAU_BROKERS": mock_brokers}) == ["tabbed-topic"]
    assert offered(["moldau", "consume", "-b", mock_brokers, "tabbed"]) == ["tabbed-topic"]
    assert complete(["moldau", "consume", "-b", mock_brokers, "nothing"]) == []


def test_topics_are_completed_after_a_login(admin, secured):
    assert admin("topic", "create", "tabbed-secured").code == 0
    at = ("-b", secured.bootstrap, "--data-dir", str(secured.data_dir))
    assert offered(["moldau", "topic", "describe", *at, "tabbed-s"]) == ["tabbed-secured"]


def test_topics_of_queue_commands_are_completed_over_grpc(moldau_session_broker, cli, new_name):
    name, grpc = new_name("tabbed-queue"), moldau_session_broker.grpc_address
    assert cli("topic", "create", name, "-b", moldau_session_broker.bootstrap).code == 0
    assert offered(["moldau", "queue", "work", name[:-1]], env={"MOLDAU_GRPC": grpc}) == [name]
    assert offered(["moldau", "queue", "send", "--grpc", grpc, name[:-1]]) == [name]
    assert complete(["moldau", "queue", "s"]) == ["send", "stats"]


def test_completion_prints_nothing_when_no_broker_responds(nobody):
    assert complete(["moldau", "queue", "send", "x"], env={"MOLDAU_GRPC": nobody}) == []
    assert complete(["moldau", "consume", "x"], env={"MOLDAU_BROKERS": nobody}) == []
    assert complete(["moldau", "group", "describe", "x"], env={"MOLDAU_BROKERS": nobody}) == []

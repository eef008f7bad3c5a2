"""What the documents say works as pasted: README, the secured cluster, the examples.

The blocks of docs/start and docs/operate are run by test_doc_blocks.py.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from doc_pages import ROOT, blocks
from doc_stories import empty_directory as empty_directory
from doc_stories import program_seconds_max, run_cluster_story

from moldau.cli.main import cli
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system

EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name[:5] != "test_")


def run(command: list[str], broker: Broker) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "MOLDAU_BROKERS": broker.bootstrap,
        "MOLDAU_GRPC": broker.grpc_address,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=program_seconds_max(),
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def at(text: str, broker: Broker) -> str:
    """The text with the test's broker in place of the default addresses."""
    text = text.replace("localhost:9092", broker.bootstrap)
    return text.replace("localhost:8000", broker.grpc_address)


def test_the_quick_start_works_as_pasted(moldau_broker: Broker) -> None:
    (shell,) = blocks("README.md", "bash", "Quick start")
    (code,) = blocks("README.md", "python", "Quick start")
    assert ". .venv/bin/activate\n" in shell
    shell = shell.replace(". .venv/bin/activate\n", "")
    assert "hello from the Moldau" in run(["bash", "-ec", shell], moldau_broker).stdout
    assert "Vltava" in run([sys.executable, "-c", at(code, moldau_broker)], moldau_broker).stdout


def test_work_queues_work_as_pasted(moldau_broker: Broker) -> None:
    (shell,) = blocks("README.md", "bash", "Work queues")
    (code,) = blocks("README.md", "python", "Work queues")
    said = run(["bash", "-ec", shell], moldau_broker).stdout
    assert said.splitlines()[:2] == ["done: resize 1.png", "done: resize 2.png"]
    assert "resizers" in said
    told = run([sys.executable, "-c", at(code, moldau_broker)], moldau_broker).stdout
    assert "1 resize 1.png" in told.splitlines()


def test_three_brokers_work_as_pasted(empty_directory: Path) -> None:
    (shell,) = blocks("README.md", "bash", "Three brokers")
    said = run_cluster_story(shell, (9192, 19192, 8180, 8100), empty_directory)
    assert "killed broker" in said
    assert "is running and in sync" in said
    assert "every message once, in order\n" in said


def test_a_secured_cluster_works_as_pasted(empty_directory: Path) -> None:
    (shell,) = blocks("docs/security.md", "bash", "A secured cluster")
    said = run_cluster_story(shell, (9292, 19292, 8280, 8200), empty_directory)
    assert "killed broker" in said
    assert "broker 4 has joined" in said
    assert "is running and in sync" in said
    assert "every message once, in order\n" in said
    assert "logged in as app; profile app is now the current one" in said
    assert "warning:" not in said
    assert re.search(r"^ledger +1 ", said, re.MULTILINE)
    assert "Not authorized to create topic 'other'" in said
    assert "refused\n" in said
    for name in ("root", "app"):
        assert (empty_directory / f"{name}.password").read_text().strip() not in said


def machines_of_replicas(said: str, topic: str) -> list[list[str]]:
    """Of each partition of a topic, as `broker list` and then `topic describe` print it."""
    before, _, described = said.partition(f"\n{topic}: ")
    listed = before[before.rindex("ID  STATE ") :].splitlines()[1:]
    machines = {row[0]: row[-1] for row in map(str.split, listed) if row[1:2] == ["active"]}
    rows = described.split("\n\n")[1].splitlines()[1:]
    partitions = [row for row in map(str.split, rows) if row[0].isdigit()]
    return [
        [machines[broker] for broker in replicas.split(",")] for _, _, replicas, *_ in partitions
    ]


@pytest.mark.safety
def test_a_lost_node_works_as_pasted(empty_directory: Path) -> None:
    two, three = blocks("docs/operate/more-cores.md", "bash", "Lose a node")
    said = run_cluster_story(two + three, (9392, 19392, 8380, 8300), empty_directory, port_count=12)
    assert "every message once\n" in said
    assert "every message once, without c\n" in said
    for topic, nodes in (("ledger", "ab"), ("orders", "abc")):
        found = machines_of_replicas(said, topic)
        assert [sorted(machines) for machines in found] == [list(nodes)] * 4, said
    assert said.count("ok       machines: no machine has two copies that could be apart\n") == 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs(path: Path, moldau_session_broker: Broker) -> None:
    run([sys.executable, str(path)], moldau_session_broker)


def test_the_example_test_passes() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "test_with_a_broker.py")],
        capture_output=True,
        text=True,
        timeout=program_seconds_max(),
        cwd=ROOT,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_every_example_is_listed() -> None:
    text = (ROOT / "examples" / "README.md").read_text()
    assert [p.name for p in (ROOT / "examples").glob("*.py") if f"({p.name})" not in text] == []


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])


HIDDEN = {ord(separator): 0xE000 + ord(separator) for separator in "|;()&$"}
SHOWN = {hidden: separator for separator, hidden in HIDDEN.items()}


def commands_in(page: Path) -> list[list[str]]:
    """Every call of `moldau` in the page's code blocks, as words."""
    found = []
    for _, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.M | re.S):
        # A backslash at its end continues a line.
        whole = block.replace("\\\n", " ")
        # What is quoted separates nothing.
        quoted = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
        for line in quoted.sub(lambda text: text[0].translate(HIDDEN), whole).splitlines():
            # After a prompt, in a pipe or a list, with settings in front.
            for part in re.split(r"[|;()]|&&|^\w*\$ ", line):
                words = part.split()
                while words and re.fullmatch(r"[A-Z_]+=\S*|exec|eval|exit|until|time", words[0]):
                    del words[0]
                # A line that a broker prints begins with its version.
                if words[:1] == ["moldau"] and words[1:] and not words[1][0].isdigit():
                    text = part.split("moldau", 1)[1].translate(SHOWN)
                    lexer = shlex.shlex(text, posix=True, punctuation_chars="<>")
                    lexer.whitespace_split = True
                    found.append(list(lexer))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_a_block_could_be_typed(page: Path) -> None:
    for words in commands_in(page):
        command: click.Command = cli
        context = cli.make_context("moldau", ["dev"])
        arguments = words[: min((words.index(end) for end in "<>" if end in words), default=None)]
        while isinstance(command, click.Group):
            _, found, arguments = command.resolve_command(context, arguments)
            assert found is not None
            command, context = found, click.Context(found)
        try:
            command.make_context(" ".join(words), arguments)
        except click.exceptions.Exit:
            pass  # --help and --version
        except click.UsageError as error:
            pytest.fail(f"{page.name}: moldau {' '.join(words)}: {error.format_message()}")


def test_the_commands_of_the_page_about_clusters_are_found() -> None:
    """The test above would be content with none."""
    found = commands_in(ROOT / "docs/operate/clusters.md")
    assert ["cluster", "start", "-n", "3", "-d"] in found
    assert ["broker", "remove", "4", "--cancel"] in found
    assert ["broker", "status"] in found
    assert len(found) > 20

"""Every command block of docs/start, operate and migration is run.

A comment on the line above a block says how:

<!-- run -->               with the other such blocks of the page, in order, in one shell, in an
                           empty folder; MOLDAU_BROKERS, _HTTP and _GRPC name a broker, as do
                           the default addresses
<!-- run: until TEXT -->   the same for a command that goes on: until it prints TEXT, then Ctrl-C
<!-- run: cluster -->      on a cluster of three brokers that `moldau cluster` starts, all
                           blocks of the page in one shell
<!-- run by tests/X.py --> another test runs it

Output and configuration that is not run has a language of its own: text, yaml.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import ROOT, Block, all_blocks
from doc_stories import empty_directory as empty_directory
from doc_stories import program_seconds_max, run_script
from s3_server import s3_server

from moldau.testing.broker import Broker
from moldau.testing.ports import free_port_run, free_ports
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

FOLDERS = ("start", "operate", "migration")
PAGES = sorted(page for each in FOLDERS for page in ROOT.glob(f"docs/{each}/**/*.md"))
BLOCKS = [block for page in PAGES for block in all_blocks(page)]

OPTIONAL = {"kcat": "kcat", "prometheus": "prometheus", "s3": "moto_server"}
"""Blocks with such a word are left out where the program is not installed."""

PRELUDE = r"""
set -e -o pipefail
moldau() {
  case "$1 $2" in
    "cluster start")
      set -- "$@" --kafka-port 0 --raft-port 0 --http-port 0 --grpc-port 0
      command moldau "$@" > .started || { cat .started; return 1; }
      cat .started
      eval "$(grep '^ *export ' .started)" ;;
    "broker start")
      command moldau "$@" --kafka-addr 127.0.0.1:$KAFKA --raft-addr 127.0.0.1:$RAFT \
        --http-addr 127.0.0.1:$HTTP --grpc-addr 127.0.0.1:$GRPC ;;
    dev*) command moldau "$@" --port 0 ;;
    *) command moldau "$@" ;;
  esac
}
prometheus() { command prometheus "$@" --web.listen-address=127.0.0.1:$PROMETHEUS; }
"""
UNTIL = """
set -m
( {text}) > .until 2>&1 & pid=$!
set +m
for _ in $(seq {tenths}); do
  grep -qF -- {wanted!r} .until && break
  kill -0 $pid 2> /dev/null || break
  sleep 0.1
done
kill -INT -- -$pid 2> /dev/null || true
code=0; wait $pid || code=$?
cat .until
grep -qF -- {wanted!r} .until
[ $code = 0 ] || [ $code = 130 ] || {{ echo "exit code $code"; exit 1; }}
"""


def shell_of(block: Block) -> str:
    """The block as part of a script."""
    text = block.text
    if re.search(r"^\$ ", text, re.MULTILINE):
        text = "".join(f"{line}\n" for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE))
    if block.language == "python":
        text = f"{sys.executable} - <<'END_OF_BLOCK'\n{text}END_OF_BLOCK\n"
    if block.mark.startswith("run: until "):
        tenths = round(wait_seconds_max() * 10)
        wanted = block.mark.removeprefix("run: until ")
        text = UNTIL.format(text=text, wanted=wanted, tenths=tenths)
    return f"echo '## {block}'\n{text}"


def play(blocks: list[Block], folder: Path, settings: dict[str, str], swaps: dict[str, str]) -> str:
    """Run blocks as one script; what they printed."""
    script = PRELUDE + "".join(shell_of(block) for block in blocks)
    for old, new in {"/var/lib/moldau": f"{folder}/var", **swaps}.items():
        script = script.replace(old, new)
    # A node of two processes takes the two ports after each of its own, too.
    names = ("KAFKA", "RAFT", "HTTP", "GRPC", "PROMETHEUS")
    own = {name: str(free_port_run(3)) for name in names}
    return run_script(
        script, folder, settings=own | settings, seconds_max=2 * program_seconds_max()
    )


def pages_with(*marks: str) -> list[str]:
    return sorted({block.page for block in BLOCKS if block.mark.startswith(marks)})


def blocks_with(page: str, *marks: str) -> list[Block]:
    return [block for block in BLOCKS if block.page == page and block.mark.startswith(marks)]


def missing_here() -> list[str]:
    own = Path(sys.executable).parent
    return [
        word
        for word, program in OPTIONAL.items()
        if shutil.which(program) is None and not (own / program).exists()
    ]


@pytest.fixture
def bucket(page: str) -> Iterator[dict[str, str]]:
    """Where the bucket of the page is, if it has one."""
    on_page = any("s3://company-backups" in block.text for block in BLOCKS if block.page == page)
    if not on_page or "s3" in missing_here():
        yield {}
        return
    with s3_server("company-backups") as settings:
        yield settings


def is_alone(block: Block) -> bool:
    return block.mark == "run" or block.mark.startswith("run: until ")


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if is_alone(block)}))
def test_the_blocks_of_a_page_work_as_pasted(
    page: str, moldau_broker: Broker, empty_directory: Path, bucket: dict[str, str]
) -> None:
    blocks = [block for block in BLOCKS if block.page == page and is_alone(block)]
    for word in missing_here():
        blocks = [block for block in blocks if not re.search(rf"\b{word}\b", block.text)]
    for copied in (ROOT / "deploy" / "prometheus").glob("*.yml"):
        shutil.copy(copied, empty_directory)
    addresses = {
        "BROKERS": ("9092", moldau_broker.bootstrap),
        "HTTP": ("8080", moldau_broker.http_address),
        "GRPC": ("8000", moldau_broker.grpc_address),
    }
    settings = {f"MOLDAU_{name}": address for name, (_, address) in addresses.items()} | bucket
    swaps = {f"localhost:{port}": address for port, address in addresses.values()}
    swaps |= {f"127.0.0.1:{port}": address for port, address in addresses.values()}
    swaps |= {
        # What listens for other machines on a page, and how long a program waits for more.
        "0.0.0.0:9000": f"127.0.0.1:{free_ports(1)[0]}",
        # Nobody listens there.
        "collector.example:4318": f"127.0.0.1:{free_ports(1)[0]}",
        "WITHOUT_RECORDS = 10": "WITHOUT_RECORDS = 3",
    }
    play(blocks, empty_directory, settings, swaps)


@pytest.mark.parametrize("page", pages_with("run: cluster"))
def test_the_blocks_about_a_cluster_work_as_pasted(page: str, empty_directory: Path) -> None:
    blocks = blocks_with(page, "run: cluster")
    whole = "".join(block.text for block in blocks)
    start = Block(page, 0, "", "moldau cluster start -n 3 -d\n", "run: cluster")
    stop = Block(page, 0, "", "moldau cluster stop\n", "run: cluster")
    first = [] if "moldau cluster start" in whole else [start]
    last = [] if "moldau cluster stop" in whole else [stop]
    play([*first, *blocks, *last], empty_directory, {}, {"localhost:8080": "${MOLDAU_HTTP%%,*}"})


def test_every_block_of_commands_is_run() -> None:
    undecided = [str(each) for each in BLOCKS if each.has_commands and not each.mark]
    assert undecided == []
    assert len([block for block in BLOCKS if block.mark]) > 15


def test_marks_are_those_that_exist_and_name_tests_that_do() -> None:
    for block in BLOCKS:
        if block.mark.startswith("run by "):
            name = block.mark.split()[2].rstrip(":")
            assert block.page in (ROOT / name).read_text(), (
                f"{block}: {name} does not name the page"
            )
        else:
            known = ("", "run", "run: cluster")
            assert block.mark in known or block.mark.startswith("run: until "), str(block)

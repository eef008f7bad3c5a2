"""The blocks of pages that need several machines, line by line, on machines (see machines.py)."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import ROOT, all_blocks, blocks
from machines import Machine, Machines, cannot_make_machines, steps_of

pytestmark = pytest.mark.system

CLUSTERS = "docs/operate/clusters.md"
ALONE = "docs/operate/running-a-broker.md"
HOSTS = ["host1", "host2", "host3", "host4"]
OPERATOR = "operator"
MARK = "run by tests/system/test_machines.py"
VARIES = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|moldau [0-9][^ ]*"
    r"|(?<=active  yes    )(yes|no) +|controller \d"
)
"""Of what pages show: the id of a cluster, the version, and which broker is the controller."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if missing := cannot_make_machines():
        pytest.skip(f"no network namespaces with mounts of their own here: {missing}")
    return tmp_path


def own_blocks(page: str) -> list[str]:
    return [block.text for block in all_blocks(ROOT / page) if block.mark == MARK]


def make_certificates(operator: Machine, names: list[str]) -> Path:
    """As docs/operate/tls.md does; where they are."""
    for name in names:
        operator.run(f"moldau certs dev --broker {name} --host {name}.example")
    return operator.home / "certs"


def same(shown: str, said: str) -> None:
    """What a page shows is what was said, apart from what differs each time."""
    assert VARIES.sub("…", said).strip() == VARIES.sub("…", shown).strip()


class Story:
    """The blocks of a page, as typed on several machines."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def play(self, text: str) -> None:
        for where, line, shown in steps_of(text):
            machine = self._machines[where or OPERATOR]
            if line.startswith("moldau broker start"):
                ready = machine.start(line).wait_for(" ready on ")
                same(shown or ready, ready)
            elif " export " in f" {line}":
                machine.settle(line)
            else:
                said = machine.run(line)
                same(shown or said, said)
                self._pass_on(machine, line)

    def _pass_on(self, source: Machine, line: str) -> None:
        """A file that was made is brought to those who need it, as the page says."""
        made = re.search(r" > (\S+)$", line)
        for host in [*HOSTS, OPERATOR] if made else []:
            target = self._machines[host].home
            if made and target != source.home:
                shutil.copy2(source.home / made[1], target)


@pytest.fixture
def machines(folder: Path) -> Iterator[Machines]:
    with Machines(folder, [*HOSTS, OPERATOR]) as made:
        certs = make_certificates(made[OPERATOR], HOSTS)
        shutil.copy(certs / "ca.pem", made[OPERATOR].home)
        (settings,) = blocks(CLUSTERS, "yaml", "On several machines")
        for host, zone in zip(HOSTS, "abca", strict=True):
            own = settings.replace("host1.", f"{host}.").replace("zone-a", f"zone-{zone}")
            # Here all of them are one, and would say so.
            own += f"machine: {host}\n"
            (made[host].home / "broker.yaml").write_text(own)
            shutil.copy(certs / "ca.pem", made[host].settings)
            for kind in ("pem", "key"):
                shutil.copy2(certs / f"{host}.{kind}", made[host].settings / f"broker.{kind}")
        yield made


@pytest.mark.safety
def test_a_cluster_of_several_machines_is_made_grows_and_gets_a_new_disk(
    machines: Machines,
) -> None:
    """In the order of docs/operate/clusters.md."""
    story, operator = Story(machines), machines[OPERATOR]
    form, grow, replace = own_blocks(CLUSTERS)
    story.play(form)
    operator.run("moldau topic create orders --partitions 3")
    operator.run("seq 1 1000 | moldau produce orders")
    story.play(grow)
    # As "Shrinking" has it.
    operator.run("moldau broker remove 4 -y")

    host3 = machines["host3"]
    host3.lose_disk()
    token, _, rest = replace.partition("\n")
    story.play(token)
    # With its old id it is refused, and the token is still good.
    (refusal,) = blocks(CLUSTERS, "text", "A lost disk")
    with_its_id = host3.start(f"{steps_of(rest)[0][1]} --id 3")
    assert with_its_id.ended() == 78
    assert refusal in with_its_id.said
    story.play(rest)
    # The page says so of its log, while the old id is known.
    host3.terminals[-1].wait_for("rejected: this is broker 5, not 3")
    operator.run("until moldau broker status; do sleep 1; done")
    read = operator.run("moldau consume orders --from-beginning -n 1000 | sort -n")
    assert read.split() == [str(each) for each in range(1, 1001)]


def test_a_broker_with_a_certificate_for_its_name_serves_other_machines(folder: Path) -> None:
    """As docs/operate/running-a-broker.md starts it."""
    with Machines(folder, ["queue", OPERATOR]) as machines:
        queue, operator = machines["queue"], machines[OPERATOR]
        certs = make_certificates(operator, ["queue"])
        for kind in ("pem", "key"):
            shutil.copy2(certs / f"queue.{kind}", queue.home / f"broker.{kind}")
        first = queue.start("moldau broker start --bootstrap --data-dir .moldau")
        first.wait_for(" ready on ")
        assert first.end() == 0

        (listen,) = own_blocks(ALONE)
        queue.start(listen).wait_for(" ready on ")
        connection = "-b queue.example:9092 --cafile certs/ca.pem"
        shutil.copytree(certs, queue.home / "certs")
        admin = f"{connection} --data-dir .moldau"
        queue.run(f"moldau user add alice --generate {admin} > password")
        queue.run(f"moldau role grant admin User:alice {admin}")
        shutil.copy2(queue.home / "password", operator.home)
        operator.settle("export MOLDAU_USER=alice MOLDAU_PASSWORD_FILE=password")
        operator.run(f"moldau topic create orders {connection}")
        operator.run(f"echo hello | moldau produce orders {connection}")
        read = operator.run(f"moldau consume orders --from-beginning -n 1 {connection}")
        assert read == "hello\n"

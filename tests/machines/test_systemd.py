"""docs/operate/systemd.md, as typed: three machines on which systemd is the first process.

The tests share them, in any order: each leaves a healthy cluster of the three.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from doc_pages import ROOT, all_blocks, blocks
from machines import Terminal
from systemd_machines import Remote, SystemdMachines, systemd_machines

from faults.checker import check
from moldau.testing.waiting import wait_until
from release.dist import build

pytestmark = pytest.mark.machine

PAGE = "docs/operate/systemd.md"
MARK = "run by tests/machines/test_systemd.py"
INSTALL, SECRET, CONFIG, START, USER, OPERATE, RESTART = (
    block.text for block in all_blocks(ROOT / PAGE) if block.mark == MARK
)
HOSTS = ["host1", "host2", "host3"]
WRITABLE = {"/var/lib/moldau", "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock"}
"""For the broker, of /tmp and /var/tmp its own. Everybody may write to the others of Debian."""
EPOCH = 1_700_000_000


def settle_or_run(machine: Remote, text: str) -> None:
    for line in text.splitlines():
        machine.settle(line) if line.startswith("umask") else machine.run(line)


def bring_settings(machines: SystemdMachines, name: str) -> None:
    """What the page says in words: names, certificates and the secret."""
    operator, machine = machines.operator, machines.hosts[name]
    certs = operator.home / "certs"
    operator.run(f"moldau certs dev --broker {name} --host {name}.example")
    files = {certs / f"{name}.pem": "broker.pem", certs / f"{name}.key": "broker.key"}
    files |= {certs / "ca.pem": "ca.pem", operator.home / "cluster.secret": "cluster.secret"}
    for source, target in files.items():
        machine.send(source, target)
    machine.run(f"sudo install -m 0640 -g moldau {' '.join(files.values())} /etc/moldau/")
    edit = f"/^initial_members/! s/host1/{name}/"
    machine.run(f"sudo sed -i {shlex.quote(f'{edit}g')} /etc/moldau/broker.yaml")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdMachines]:
    """By the page, up to the first user."""
    folder = tmp_path_factory.mktemp("machines")
    _, wheel = build(ROOT, folder, EPOCH)
    with systemd_machines(folder, HOSTS, wheel) as made:
        operator, hosts = made.operator, made.hosts
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: host.run(INSTALL), hosts.values()))
        operator.run(SECRET)
        for name in HOSTS:
            bring_settings(made, name)
            assert "/etc/moldau/broker.yaml" in hosts[name].run(CONFIG)

        enable, journal, health = START.splitlines()
        for name in reversed(HOSTS):
            hosts[name].run(enable)
        shown = hosts["host1"].start(journal)
        shown.wait_for(" ready on 0.0.0.0:9092 (broker 1,")
        shown.end()
        for host in hosts.values():
            wait_until(lambda host=host: host.attempt(health)[0] == 0, f"{host.name} is ready")

        settle_or_run(hosts["host1"], USER)
        operator.run("scp host1.example:root.password . && cp certs/ca.pem .")
        for line in OPERATE.splitlines():
            operator.settle(line) if line.startswith("export") else operator.run(line)
        yield made


def acknowledged(load: Terminal) -> int:
    counts = re.findall(r'^{"acked": (\d+),', load.said, re.MULTILINE)
    return int(counts[-1]) if counts else 0


@contextmanager
def producing(machines: SystemdMachines, topic: str) -> Iterator[None]:
    """With a producer with acks=all that must not fail; nothing is lost, repeated or reordered."""
    operator = machines.operator
    operator.run(f"moldau topic create {topic} --partitions 3")
    wanted = {
        "bootstrap": ",".join(f"{name}.example:9092" for name in HOSTS),
        "topic": topic,
        "partitions": 3,
        "settings": {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": "ca.pem",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "root",
            "sasl.password": (operator.home / "root.password").read_text().strip(),
        },
    }
    program = str(ROOT / "tests/helpers/machine_load.py")
    operator.settle(f"export PYTHONPATH={ROOT}:{ROOT}/tests/helpers")
    load = operator.start(shlex.join([sys.executable, program, json.dumps(wanted)]))
    wait_until(lambda: acknowledged(load) > 0, "it has begun", describe=lambda: load.said)
    yield
    before = acknowledged(load)
    wait_until(lambda: acknowledged(load) > before, "it goes on", describe=lambda: load.said)
    assert load.end() == 0, load.said
    found = json.loads(load.said.splitlines()[-1])
    assert found["failures"] == []
    assert check(found["events"]).examples == {}
    assert found["acked"] > 100


def state(host: Remote, *names: str) -> list[str]:
    """Properties of the unit."""
    said = host.run(f"systemctl show moldau {' '.join(f'-p {name}' for name in names)}")
    found = dict(line.split("=", 1) for line in said.splitlines())
    return [found[name] for name in names]


def is_ready(host: Remote) -> bool:
    return host.attempt(START.splitlines()[-1])[0] == 0


def wait_for_all(machines: SystemdMachines) -> None:
    """Until the cluster is healthy again."""
    status = "moldau broker status"
    wait_until(
        lambda: machines.operator.attempt(status)[0] == 0,
        "it is healthy",
        describe=lambda: machines.operator.attempt(status)[1],
    )


def test_the_page_makes_a_cluster_of_three(machines: SystemdMachines) -> None:
    said = machines.operator.run("moldau broker list -o json")
    brokers = [each for each in json.loads(said) if each["alive"]]
    assert sorted(each["http"] for each in brokers) == [f"{name}.example:8080" for name in HOSTS]
    assert sorted(each["rack"] for each in brokers) == HOSTS
    for host in machines.hosts.values():
        enabled = ["ActiveState", "UnitFileState", "NRestarts"]
        assert state(host, *enabled) == ["active", "enabled", "0"]


@pytest.mark.safety
def test_machines_are_restarted_one_after_the_other_without_an_error(
    machines: SystemdMachines,
) -> None:
    with producing(machines, "restarted"):
        for name in HOSTS:
            machines.operator.run(RESTART.replace("host2", name))
            (result,) = state(machines.hosts[name], "Result")
            assert result == "success"
    journal = machines.hosts["host1"].run("sudo journalctl -u moldau")
    assert "moldau.service: Deactivated successfully." in journal


@pytest.mark.safety
def test_a_killed_broker_is_started_again(machines: SystemdMachines) -> None:
    host = machines.hosts["host3"]
    with producing(machines, "killed"):
        (before,) = state(host, "MainPID")
        host.run(f"sudo kill -9 {before}")
        wait_until(lambda: state(host, "MainPID")[0] not in ("0", before), "it is started")
        wait_for_all(machines)
    assert state(host, "NRestarts") == ["1"]


@contextmanager
def override(host: Remote, lines: str) -> Iterator[None]:
    """What `systemctl edit moldau` does, with an editor."""
    folder = "/etc/systemd/system/moldau.service.d"
    host.run(f"sudo mkdir {folder}; echo {shlex.quote(lines)} | sudo tee {folder}/override.conf")
    host.run("sudo systemctl daemon-reload")
    try:
        yield
    finally:
        host.run(f"sudo rm -r {folder} && sudo systemctl daemon-reload")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("Environment=MOLDAU_LOG__FLUSH=sometimes", "78"),
        ("ExecStart=\nExecStart=/opt/moldau/bin/moldau broker start --none-such", "2"),
    ],
)
def test_a_broker_with_a_wrong_configuration_is_not_started_again(
    machines: SystemdMachines, lines: str, code: str
) -> None:
    host = machines.hosts["host2"]
    with override(host, f"[Service]\n{lines}"):
        host.run("sudo systemctl restart moldau")
        # While systemd is to start it again, its state is "activating".
        wait_until(lambda: state(host, "ActiveState") == ["failed"], "it has failed")
        assert state(host, "NRestarts", "ExecMainStatus") == ["0", code]
        assert "error: " in host.run("sudo journalctl -u moldau -n 10")
    host.run("sudo systemctl start moldau")
    wait_for_all(machines)


def test_it_can_write_to_its_directory_alone(machines: SystemdMachines) -> None:
    host = machines.hosts["host1"]
    pid, user = state(host, "MainPID", "User")
    # As the broker's user, in the view of the file system that systemd gave to the broker.
    inside = f"sudo nsenter -t {pid} -m setpriv --reuid {user} --regid {user} --clear-groups"
    find = "find / -xdev -type d -writable 2> /dev/null; find /dev /run /tmp -type d -writable"
    said = host.run(f"{inside} bash -c {shlex.quote(f'{find} 2> /dev/null || true')}")
    outside = {path for path in said.split() if not path.startswith("/var/lib/moldau/")}
    assert outside <= WRITABLE
    assert "/var/lib/moldau" in said.split()
    # Even root could not, where systemd has made it read-only.
    places = "/ /etc /etc/moldau /opt/moldau /usr /var /var/lib /var/log /home /root /srv"
    tried = f"find {places} -maxdepth 0 -writable"
    assert host.run(f"sudo nsenter -t {pid} -m {tried}") == ""
    # Nor see what is none of its business.
    assert host.run(f"sudo nsenter -t {pid} -m ls /home /root /tmp").split() == [
        "/home:",
        "/root:",
        "/tmp:",
    ]
    status = host.run(f"sudo cat /proc/{pid}/status")
    assert re.search(r"^CapBnd:\s0+$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s2$", status, re.MULTILINE)


def test_it_runs_after_a_reboot(machines: SystemdMachines) -> None:
    host = machines.hosts["host2"]
    boot = host.run("cat /proc/sys/kernel/random/boot_id")
    host.attempt("sudo systemctl reboot")
    seen = "cat /proc/sys/kernel/random/boot_id"
    wait_until(lambda: host.attempt(seen)[0] == 0 and host.run(seen) != boot, "it has booted")
    wait_until(lambda: is_ready(host), "it is ready")
    wait_for_all(machines)


def test_it_does_not_start_while_its_disk_is_not_mounted(machines: SystemdMachines) -> None:
    host = machines.hosts["host3"]
    (lines,) = blocks(PAGE, "ini", "Data on another disk")
    host.run("sudo systemctl stop moldau")
    with override(host, lines):
        code, said = host.attempt("sudo systemctl start moldau")
        assert code == 1, said
        assert "Assertion failed" in said

        host.run("sudo cp -a /var/lib/moldau /srv/disk")
        host.run("sudo mount --bind /srv/disk /var/lib/moldau && sudo systemctl start moldau")
        wait_until(lambda: is_ready(host), "it is ready")
        host.run("sudo systemctl stop moldau && sudo umount /var/lib/moldau")
    # What was written there is brought back.
    host.run("sudo rm -r /var/lib/moldau && sudo mv /srv/disk /var/lib/moldau")
    host.run("sudo systemctl start moldau")
    wait_for_all(machines)


def test_another_data_directory_can_be_allowed(machines: SystemdMachines) -> None:
    host = machines.hosts["host3"]
    where = "/srv/moldau"
    lines = f"[Service]\nEnvironment=MOLDAU_DATA_DIR={where}\nReadWritePaths={where}"
    host.run(f"sudo systemctl stop moldau && sudo mv /var/lib/moldau {where}")
    with override(host, lines):
        host.run("sudo systemctl start moldau")
        wait_until(lambda: is_ready(host), "it is ready")
        assert where in host.run("sudo journalctl -u moldau -n 20 | grep ' ready on '")
        host.run("sudo systemctl stop moldau")
    host.run(f"sudo rm -r /var/lib/moldau && sudo mv {where} /var/lib/moldau")
    host.run("sudo systemctl start moldau")
    wait_for_all(machines)


def test_a_broker_that_lost_its_disk_joins_again(machines: SystemdMachines) -> None:
    host, operator = machines.hosts["host3"], machines.operator

    def ids() -> list[int]:
        listed = json.loads(operator.run("moldau broker list -o json"))
        return [each["id"] for each in listed if each["http"] == "host3.example:8080"]

    (old,) = ids()
    host.run("sudo systemctl stop moldau")
    host.run("sudo find /var/lib/moldau -mindepth 1 -delete && sudo systemctl start moldau")
    wait_until(lambda: len(ids()) == 2, "it has joined")
    operator.run(f"moldau broker remove {old} -y")
    wait_for_all(machines)
    assert old not in ids()

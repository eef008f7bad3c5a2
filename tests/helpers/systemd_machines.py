"""Machines on which systemd runs as the first process, with a person who reaches them by ssh.

Each is a container of systemd-nspawn with a Debian of its own. All of it ends with the processes
of the container, but for an empty cgroup, which is removed.
"""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from doc_pages import ROOT
from machine_rootfs import CACHE, SECONDS_MAX, debian, need_packages
from machines import Machine, Shell, cannot_make_machines, hosts_file

from faults.namespaces import Namespaces
from moldau.testing.waiting import wait_seconds_max, wait_until

SUITE: Final = "bookworm"
PACKAGES: Final = [
    "ca-certificates",
    "dbus",
    "openssh-server",
    "python3-venv",
    "sudo",
    "systemd",
    "systemd-sysv",
]
PROGRAMS: Final = {
    "ip": "iproute2",
    "ssh": "openssh-client",
    "systemd-nspawn": "systemd-container",
}
PERSON: Final = "admin"
OPERATOR: Final = "operator"
WHEELS: Final = "/srv/wheels"
LENT: Final = "/srv/lent"

_BOOT: Final = """
set -e
folder=$1; name=$2; base=$3; wheels=$4; lent=$5; network=$6
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir "/sys/fs/cgroup/$name"
echo $$ > "/sys/fs/cgroup/$name/cgroup.procs"
mkdir -p /run/systemd/nspawn
mount -t tmpfs tmpfs /run/systemd/nspawn
cd "$folder"
mount -t overlay overlay -o "lowerdir=$base,upperdir=upper,workdir=work" root
chroot root useradd --no-create-home --shell /bin/bash admin
chroot root chown -R admin: /home/admin
trap 'kill $pid; wait $pid; exit' TERM
code=133  # It wants to start again.
while [ $code = 133 ]; do
  setpriv --pdeathsig KILL systemd-nspawn --directory=root --boot --machine="$name" \\
    --register=no --keep-unit --network-namespace-path="$network" --link-journal=no \\
    --resolv-conf=off --timezone=off --console=pipe --bind-ro="$wheels:/srv/wheels" \\
    --bind-ro="$lent:/srv/lent" &
  pid=$! code=0
  wait $pid || code=$?
done
"""
"""Mounts are those of this process and what it becomes. The hierarchy of cgroups is the one that a
Debian of today has, also where this machine has an older one."""
_FETCH: Final = """
set -e
base=$1; folder=$2; kept=$3; wheel=$4
cd "$folder"
mount -t overlay overlay -o "lowerdir=$base,upperdir=upper,workdir=work" root
mkdir root/wheels root/kept
mount --bind . root/wheels
mount --bind "$kept" root/kept
mount --bind /dev root/dev
cp /etc/resolv.conf /etc/hosts root/etc/
chroot root python3 -m venv /fetch
fetch() {
  chroot root /fetch/bin/pip download "$@" --no-cache-dir --only-binary :all: \\
    -d /wheels "/wheels/$wheel"
}
fetch --no-index --find-links /kept || { fetch; cp -n *.whl "$kept"; rm "$kept/$wheel"; }
"""
_CLEAR: Final = """
mount -t cgroup2 cgroup2 /sys/fs/cgroup
find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} +
"""
_PRIVATELY: Final = ["unshare", "--mount", "--propagation", "private"]


class Remote(Shell):
    """A machine, as the operator reaches it by ssh."""

    def __init__(self, operator: Machine, name: str) -> None:
        super().__init__(operator.home, operator.enter)
        self.name = name

    def command(self, line: str) -> list[str]:
        words = shlex.join(["bash", "-c", self.script(line)])
        return [*self.enter, "ssh", f"{self.name}.example", words]

    def send(self, source: Path, target: str) -> None:
        """A file of the operator's, for the person there."""
        copied = subprocess.run(
            [*self.enter, "scp", "-rpq", str(source), f"{self.name}.example:{target}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert copied.returncode == 0, copied.stderr


@dataclass(frozen=True)
class SystemdMachines:
    """The operator's machine, and those that it reaches."""

    operator: Machine
    hosts: dict[str, Remote]


def wheels_of(wheel: Path, base: Path) -> Path:
    """A folder with a wheel and all that it needs, for the Python of the machines.

    What it needs is fetched once, and kept.
    """
    kept, folder = CACHE / "wheels", wheel.parent
    for each in (kept, *(folder / name for name in ("upper", "work", "root"))):
        each.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*_PRIVATELY, "bash", "-c", _FETCH, "-", *map(str, (base, folder, kept, wheel.name))],
        env={key: value for key, value in os.environ.items() if key != "PIP_FIND_LINKS"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"what moldau needs cannot be fetched: {done.stderr.strip()[-300:]}")
    return folder


@contextmanager
def systemd_machines(
    folder: Path,
    names: list[str],
    wheel: Path,
    *,
    packages: Sequence[str] = (),
    lent: Path | None = None,
) -> Iterator[SystemdMachines]:
    """Some machines, from their start until they are switched off.

    `packages`: more of Debian's. `lent`: a folder of this machine that they can read, at LENT.
    """
    need_packages(PROGRAMS)
    if missing := cannot_make_machines():
        pytest.skip(f"no machines can be made here: {missing}")
    base = debian(SUITE, [*PACKAGES, *packages])
    wheels = wheels_of(wheel, base)
    with ExitStack() as ends:
        spaces = ends.enter_context(Namespaces([*names, OPERATOR], tag="s"))
        hosts = hosts_file(spaces.addresses)
        operator = Machine(folder / OPERATOR, spaces.command(OPERATOR), hosts)
        ends.callback(operator.stop)
        key = _make_key(operator)
        made = {}
        for name in names:
            _furnish(folder / name, hosts, name, key)
            ends.enter_context(
                _booted(folder / name, base, wheels, lent or wheels, spaces.path(name))
            )
            made[name] = Remote(operator, name)
            ends.callback(made[name].stop)
        for machine in made.values():
            _wait_for(machine)
        yield SystemdMachines(operator, made)


def _make_key(operator: Machine) -> str:
    """For the operator's ssh; its public half."""
    file = operator.home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    settings = operator.home.parent / "etc/ssh"
    settings.mkdir()
    (settings / "ssh_config").write_text(
        f"User {PERSON}\nIdentityFile {file}\nStrictHostKeyChecking no\n"
        "UserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    )
    return file.with_suffix(".pub").read_text()


def _furnish(folder: Path, hosts: str, name: str, key: str) -> None:
    """What a person who set up the machine would have put there."""
    for place in ("upper/etc/sudoers.d", "upper/home/admin/.ssh", "work", "root"):
        (folder / place).mkdir(parents=True)
    upper = folder / "upper"
    for each in (folder, upper, upper / "etc", upper / "home"):
        each.chmod(0o755)
    (upper / "etc/hosts").write_text(hosts)
    (upper / "etc/resolv.conf").touch()
    (upper / "etc/hostname").write_text(f"{name}\n")
    (upper / "etc/pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {WHEELS}\n")
    (upper / "etc/sudoers.d/admin").write_text(f"{PERSON} ALL=(ALL) NOPASSWD: ALL\n")
    (upper / "home/admin/.ssh/authorized_keys").write_text(key)
    # The page's commands are typed in a checkout.
    for part in ("systemd", "pipelines"):
        shutil.copytree(ROOT / "deploy" / part, upper / "home/admin/deploy" / part)


@contextmanager
def _booted(folder: Path, base: Path, wheels: Path, lent: Path, network: str) -> Iterator[None]:
    name = f"moldau-s-{os.getpid()}-{folder.name}"
    arguments = [str(folder), name, str(base), str(wheels), str(lent), network]
    with (folder / "console").open("wb") as console:
        process = subprocess.Popen(
            # They die with the tests, however these end.
            ["setpriv", "--pdeathsig", "KILL", *_PRIVATELY, "bash", "-c", _BOOT, "-", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(wait_seconds_max())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        subprocess.run([*_PRIVATELY, "bash", "-c", _CLEAR, "-", name], check=False)


def _wait_for(machine: Remote) -> None:
    """Until systemd has started all that it was to start."""
    state = {"is": ""}

    def is_up() -> bool:
        state["is"] = machine.attempt("systemctl is-system-running")[1].strip()
        return state["is"] in ("running", "degraded")

    wait_until(is_up, f"{machine.name} is up", describe=lambda: state["is"])

"""The machine of a run, and the versions of what ran on it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from benchmarks.harness import environment

PGO_GAIN = "builds with PGO are 1.10–1.15 × faster"


def python_build(config_args: str) -> str:
    """How a Python was optimised, by the arguments that it was configured with."""
    options = {
        "PGO": "--enable-optimizations" in config_args,
        "LTO": "--with-lto" in config_args and "--with-lto=no" not in config_args,
    }
    used = " and ".join(name for name, is_used in options.items() if is_used)
    built = f"built with {used}" if used else "built without PGO and LTO"
    return built if options["PGO"] else f"{built} ({PGO_GAIN})"


def hot_path(version_line: str) -> str:
    """Whether the broker's hot path is compiled, as `moldau --version` says."""
    return "compiled" if re.search(r"\bcompiled\b", version_line) else "pure Python"


def _version(command: list[str]) -> str | None:
    if not shutil.which(command[0]):
        return None
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=False, env=environment()
    )
    return (done.stdout or done.stderr).strip().splitlines()[0] if done.returncode == 0 else None


def machine(versions: Mapping[str, str]) -> dict[str, str]:
    """By name; `versions` are those of what the run fetched."""
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith(("model name", "cpu part")):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = Path("/proc/meminfo").read_text().split("\n", 1)[0].split()[1]
    found = {
        "processor": f"{os.cpu_count()} cores, {platform.machine()}, {cpu}",
        "memory": f"{int(memory) / 1e6:.0f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_version()}, "
        + python_build(str(sysconfig.get_config_var("CONFIG_ARGS") or "")),
    }
    for package in ("moldau", "uvloop", "crc32c", "confluent-kafka"):
        found[package] = metadata.version(package)
    shown = _version([sys.executable, "-m", "moldau", "--version"]) or ""
    found["moldau"] += f", {hot_path(shown)}"
    redis = _version(["redis-server", "--version"])
    if redis:
        found["Redis"] = redis.split("v=", 1)[-1].split()[0]
    nats = _version(["nats-server", "--version"])
    if nats:
        found["NATS"] = nats.split("v", 1)[-1].split()[-1].lstrip("v")
    rabbit = _version(["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"])
    if rabbit:
        found["RabbitMQ"] = rabbit
    return {**found, **versions}

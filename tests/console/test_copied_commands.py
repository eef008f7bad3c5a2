"""Commands that the console offers to copy do in a shell what the page does."""

import os
import shlex
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from console_page import Console, console
from playwright.sync_api import Browser

from moldau import QueueClient
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], str]:
    """What a line prints that is pasted to a shell, in a directory of its own."""
    program = tmp_path / "bin/moldau"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m moldau "$@"\n')
    program.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MOLDAU_")}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"

    def run(line: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            capture_output=True,
            text=True,
            timeout=wait_seconds_max(),
            check=False,
            env=environment,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def copied(tab: Console, name: str = "moldau") -> str:
    """Of the last that can be copied: the first is the topic."""
    tab.button("Copy as …").last.click()
    tab.button(f"Copy {name}", within=tab.dialog).click()
    text: str = tab.page.evaluate("navigator.clipboard.readText()")
    tab.page.keyboard.press("Escape")
    return text


def in_python(text: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(text)}"


def test_what_is_copied_finds_the_cluster_and_does_the_same(
    browser: Browser,
    moldau_session_broker: Broker,
    moldau_topic: str,
    shell: Callable[[str], str],
    tmp_path: Path,
) -> None:
    broker = moldau_session_broker
    value = """$(touch made) 'a' "b" `touch made` (x)"""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(moldau_topic, "other", key="k", partition=0)
    producer.produce(moldau_topic, value, key="k", partition=0)
    assert producer.flush() == 0
    with console(browser, broker.http_address) as tab:
        tab.open(f"/topics/{moldau_topic}?tab=messages")
        tab.fill("Text in the value", value)
        tab.fill("Key", "k")
        tab.click("Search")
        tab.see("Searched all.")
        assert shell(copied(tab)) == f"{value}\n"
        (found,) = literal_eval(shell(in_python(copied(tab, "Python"))))["records"]
        assert found["value"] == value

        tab.open(f"/topics/{moldau_topic}?tab=produce")
        tab.fill("Value", '{"by": "$(touch made)"}')
        tab.click("Add header")
        tab.fill("Name of header 1", "trace")
        tab.fill("Value of header 1", "it's")
        tab.choose("Partition", "0")
        shell(copied(tab))
        shell(in_python(copied(tab, "Python")))
        tab.open(f"/topics/{moldau_topic}?tab=messages&header=trace:it's&json=by=$(touch made)")
        tab.see("Searched all.")
        assert [row[1:] for row in tab.rows("Messages")] == [
            ["0", "3", "–", '{"by": "$(touch made)"}'],
            ["0", "2", "–", '{"by": "$(touch made)"}'],
        ]
        assert shell(copied(tab)) == '{"by": "$(touch made)"}\n' * 2

        with QueueClient(broker.grpc_address) as client:
            name = f"workers of {moldau_topic}"
            client.connect(name, moldau_topic, dead_letter=f"{moldau_topic}.dead").close()
        tab.open(f"/queues/workers of {moldau_topic}/{moldau_topic}")
        assert moldau_topic in shell(copied(tab))
    assert not (tmp_path / "made").exists()

"""Owns Kafka's own command-line tools: fetched by maven, and run against a broker over TLS."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sasl_clients import Credentials

from moldau.testing.waiting import wait_seconds_max

POM = Path(__file__).parents[1] / "compat/languages/java-tools/pom.xml"
WANTED = "java" in os.environ.get("MOLDAU_TEST_LANGUAGES", "").replace(",", " ").split()
CLASSES = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}
CONFIG = {
    "kafka-console-producer": "--producer.config",
    "kafka-console-consumer": "--consumer.config",
}
_MODULES = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}
_SECURITY = "org.apache.kafka.common.security"


def why_missing() -> str:
    """Why the tools cannot be had here; empty if they can."""
    if not WANTED:
        return "fetches Kafka's tools (55 MB); wanted with MOLDAU_TEST_LANGUAGES=java"
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    return f"Kafka's tools need {' and '.join(missing)}" if missing else ""


def fetch(folder: Path) -> str:
    """Copy the tools to a folder. What went wrong; empty if nothing did."""
    shutil.copy(POM, folder)
    done = subprocess.run(
        ["mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=10 * wait_seconds_max(),
        check=False,
    )
    return f"maven cannot fetch Kafka's tools: {done.stdout[-500:]}" if done.returncode else ""


@dataclass(frozen=True)
class Started:
    """A tool that runs."""

    process: subprocess.Popen[str]
    _printed: Path

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def lines(self) -> list[str]:
        return self._printed.read_text().splitlines()


@dataclass(frozen=True)
class JavaTools:
    """The tools in `folder`, with a file of properties for who runs them."""

    folder: Path

    def run(
        self, tool: str, bootstrap: str, who: Credentials, *arguments: str, given: str = ""
    ) -> str:
        """What it prints, errors included: some of the tools end with 0 after an error."""
        done = subprocess.run(
            self._command(tool, bootstrap, who, *arguments),
            input=given,
            capture_output=True,
            text=True,
            timeout=2 * wait_seconds_max(),
            check=False,
        )
        return done.stdout + done.stderr

    @contextmanager
    def started(
        self, tool: str, bootstrap: str, who: Credentials, *arguments: str
    ) -> Iterator["Started"]:
        """The tool while it runs."""
        printed = self.folder / f"{tool}.out"
        with printed.open("w") as output:
            process = subprocess.Popen(
                self._command(tool, bootstrap, who, *arguments),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
            )
        try:
            yield Started(process, printed)
        finally:
            process.kill()
            process.communicate()

    def _command(self, tool: str, bootstrap: str, who: Credentials, *arguments: str) -> list[str]:
        properties, options = self._properties(who)
        return [
            *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *options),
            *("-cp", f"{self.folder}/lib/*", CLASSES[tool]),
            *("--bootstrap-server", bootstrap),
            *(CONFIG.get(tool, "--command-config"), str(properties), *arguments),
        ]

    def _properties(self, who: Credentials) -> tuple[Path, list[str]]:
        """A file of properties, and options of Java."""
        assert who.tls is not None
        lines = {
            "security.protocol": who.protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": who.tls.ca_file,
        }
        options: list[str] = []
        if who.tls.certificate is not None:
            certificate, key = map(Path, who.tls.certificate)
            both = self._private("own.pem", key.read_text() + certificate.read_text())
            lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
        if who.mechanism:
            module = f"{_MODULES.get(who.mechanism, 'scram.Scram')}LoginModule"
            login = f'username="{who.user}" password="{who.password}"'
            lines["sasl.mechanism"] = who.mechanism
            if who.token is not None:
                login = ""
                url = self._private("token", who.token()).as_uri()
                lines["sasl.oauthbearer.token.endpoint.url"] = url
                lines["sasl.login.callback.handler.class"] = (
                    f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
                )
                options = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"]
            lines["sasl.jaas.config"] = f"{_SECURITY}.{module} required {login};"
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        return self._private("client.properties", text), options

    def _private(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.touch(0o600)
        path.write_text(text)
        return path

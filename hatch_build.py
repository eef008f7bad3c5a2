"""Compiles parts into the wheel, where that is possible: the decoder of the Spark source, and the
hot path if asked by HOT_PATH=compiled.

The hot path (release/hot_path.py) takes a minute or two, and its libraries are for one version of
Python: an install from source is interpreted, `make dist` makes wheels that are compiled.

The decoder needs Cython, which comes with the build, a C compiler and the headers of Python. Where
any of them is missing the wheel is one of pure Python, and the source decodes with numpy.

The library is put beside its source, so that editable installs find it, too. It is written against
the stable ABI: one wheel serves Python 3.11 and all that follow.
"""

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "moldau.spark.source.compiled"
SOURCE = Path("src", *NAME.split(".")).with_suffix(".pyx")
LIBRARY = SOURCE.with_suffix(".abi3.so")


class DecoderHook(BuildHookInterface):
    """Adds the library to wheels; source distributions hold what it is made from."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        self._add_decoder(build_data)
        if version != "editable" and os.environ.get("HOT_PATH") == "compiled":
            self._add_hot_path(build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_libraries"):
            shutil.rmtree(self._libraries)

    def _add_hot_path(self, build_data: dict[str, Any]) -> None:
        """Raises: who asks for it wants no wheel without it."""
        sys.path.insert(0, self.root)
        from release.hot_path import compile_modules

        self._libraries = tempfile.mkdtemp()
        for library in compile_modules(Path(self.root), Path(self._libraries)):
            name = library.relative_to(self._libraries).as_posix()
            build_data["force_include"][str(library)] = name
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        build_data["pure_python"] = False
        build_data["tag"] = f"{python}-{python}-{_glibc_tag()}"

    def _add_decoder(self, build_data: dict[str, Any]) -> None:
        library = Path(self.root, LIBRARY)
        try:
            # One that was made from an older source must not be found.
            library.unlink(missing_ok=True)
            compile_decoder(Path(self.root, SOURCE), library)
        except Exception as error:  # Whatever it is, there is another way.
            self.app.display_warning(f"the decoder of the Spark source is not compiled: {error}")
            return
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{_platform_tag()}"


def compile_decoder(source: Path, library: Path) -> None:
    if platform.python_implementation() != "CPython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise RuntimeError("this Python has no stable ABI")
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    extension = Extension(
        NAME,
        [str(source)],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        modules = cythonize([extension], build_dir=folder, quiet=True)
        command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib = command.build_temp = folder
        command.ensure_finalized()
        command.run()
        (built,) = command.get_outputs()
        shutil.copyfile(built, library)


def _glibc_tag() -> str:
    """Of all machines whose C library is as new as this one's: the libraries need nothing else."""
    from packaging.tags import platform_tags

    found = [tag for tag in platform_tags() if tag.startswith("manylinux")]
    return found[0] if found else _platform_tag()


def _platform_tag() -> str:
    """That of this machine alone: nobody has checked which others the library would run on."""
    from packaging.tags import platform_tags

    return next(tag for tag in platform_tags() if "linux_" not in tag or tag.startswith("linux_"))

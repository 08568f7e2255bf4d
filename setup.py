"""Builds gpumem._core from csrc/; everything else stands in pyproject.toml.

Two groups of sources are compiled with two lists of warnings: csrc/python casts
functions to ``void *`` in type slots and keeps keyword lists in ``char *``, which the
strict list forbids everywhere else. Headers of Python and NumPy come by ``-isystem``.

Switches, by environment variable:

GPUMEM_WERROR=1
    Warnings are errors.
GPUMEM_DEBUG=1
    The self-checks of debug builds (GM_DEBUG), little optimisation.
GPUMEM_SANITIZE=address
    Any list that ``-fsanitize=`` takes.
GPUMEM_COVERAGE=1
    Line counters for gcov.
GPUMEM_CUDA_INCLUDE=FOLDER
    NVIDIA's headers of CUDA 13. Unnamed they are those of the wheels
    ``nvidia-cuda-runtime`` and ``nvidia-cuda-crt``, which pip brings for the build,
    then those of a toolkit.
GPUMEM_CUDA=0
    Without the CUDA backend; a request for a CUDA device says so.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

SOURCES = sorted(str(path) for path in Path("csrc").rglob("*.c"))
CUDA_ABSENT = str(Path("csrc", "device", "cuda_absent.c"))
CUDA_ALWAYS = str(Path("csrc", "device", "cuda_states.c"))
HEADERS = sorted(str(path) for path in Path("csrc").rglob("*.h"))

WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wsign-conversion",
    "-Wshadow",
    "-Wundef",
    "-Wvla",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wcast-qual",
]
STRICT_WARNINGS = [*WARNINGS, "-Wpedantic", "-Wwrite-strings"]


def is_set(name: str) -> bool:
    """Whether a switch is on: set, and neither empty nor 0."""
    return os.environ.get(name, "") not in ("", "0")


def cuda_headers() -> str | None:
    """Return the folder of NVIDIA's headers; None: built without CUDA, as was asked."""
    if os.environ.get("GPUMEM_CUDA") == "0":
        return None
    named = os.environ.get("GPUMEM_CUDA_INCLUDE", "")
    folders = [named] if named else []
    if not named:
        folders += [
            os.path.join(path, "nvidia", "cu13", "include") for path in sys.path
        ]
        nvcc = shutil.which("nvcc")
        if nvcc is not None:
            folders.append(str(Path(nvcc).resolve().parents[1] / "include"))
        folders.append("/usr/local/cuda/include")
    for folder in folders:
        needed = ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h")
        if all(os.path.isfile(os.path.join(folder, name)) for name in needed):
            return folder
    raise SystemExit(
        "gpumem needs NVIDIA's headers of CUDA 13 to build: install the wheels "
        "nvidia-cuda-runtime and nvidia-cuda-crt (pip does in an isolated build), set "
        "GPUMEM_CUDA_INCLUDE to the folder that has cuda_runtime_api.h, or build "
        f"without CUDA by GPUMEM_CUDA=0. Looked in: {', '.join(folders)}"
    )


def chosen_sources(headers: str | None) -> list[str]:
    """Return the sources of a build with the CUDA backend, or of one without."""
    if headers is not None:
        return [source for source in SOURCES if source != CUDA_ABSENT]
    prefix = str(Path("csrc", "device", "cuda"))
    kept = (CUDA_ABSENT, CUDA_ALWAYS)
    return [s for s in SOURCES if not s.startswith(prefix) or s in kept]


def check_platform() -> None:
    """End the build with one clear line where gpumem cannot work."""
    machine = platform.machine()
    if (
        sys.platform != "linux"
        or machine not in ("x86_64", "aarch64")
        or struct.calcsize("P") != 8
    ):
        raise SystemExit(
            "gpumem builds on 64-bit Linux (x86-64, aarch64) only; "
            f"this is {sys.platform} on {machine}"
        )


class BuildCore(build_ext):
    """Compiles each source with the flags of its group, in parallel, then links."""

    def build_extension(self, ext: Extension) -> None:
        """Build the one extension module of the distribution."""
        check_platform()
        headers = cuda_headers()
        compiler = shlex.split(
            os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        )
        common = self.common_flags(ext)
        common += ["-isystem", headers] if headers is not None else []
        group = hashlib.sha256(" ".join([*compiler, *common]).encode()).hexdigest()
        folder = Path(self.build_temp) / group[:12]
        newest = max(os.path.getmtime(path) for path in [*HEADERS, "setup.py"])

        def compile_one(source: str) -> str:
            target = folder / Path(source).with_suffix(".o")
            after = max(newest, os.path.getmtime(source))
            if self.force or not target.exists() or target.stat().st_mtime < after:
                target.parent.mkdir(parents=True, exist_ok=True)
                in_python = source.startswith(os.path.join("csrc", "python", ""))
                warnings = WARNINGS if in_python else STRICT_WARNINGS
                command = [*compiler, *common, *warnings]
                command += ["-c", source, "-o", str(target)]
                if subprocess.run(command, check=False).returncode != 0:
                    raise CompileError(f"could not compile {source}")
            return str(target)

        with ThreadPoolExecutor(self.parallel or os.cpu_count() or 1) as workers:
            objects = list(workers.map(compile_one, chosen_sources(headers)))
        result = Path(self.get_ext_fullpath(ext.name))
        result.parent.mkdir(parents=True, exist_ok=True)
        command = [*compiler, "-shared", "-pthread", *self.sanitizer_flags()]
        command += [*objects, "-o", str(result), "-lm", "-lrt", "-ldl"]
        command += shlex.split(os.environ.get("LDFLAGS", ""))
        if subprocess.run(command, check=False).returncode != 0:
            raise LinkError(f"could not link {result}")

    def common_flags(self, ext: Extension) -> list[str]:
        """Flags of every source, whatever its group."""
        import numpy

        debug = is_set("GPUMEM_DEBUG")
        flags = [
            "-std=c11",
            "-D_GNU_SOURCE",
            "-ffp-contract=off",  # csrc/kernels/element.h says why
            "-fPIC",
            "-fvisibility=hidden",
            "-pthread",
        ]
        flags += ["-O1", "-g", "-DGM_DEBUG=1"] if debug else ["-O2", "-DNDEBUG"]
        flags += [f'-DGPUMEM_VERSION="{self.distribution.get_version()}"', "-Icsrc"]
        for folder in (
            sysconfig.get_path("include"),
            sysconfig.get_path("platinclude"),
            numpy.get_include(),
        ):
            flags += ["-isystem", folder]
        if is_set("GPUMEM_WERROR"):
            flags.append("-Werror")
        flags += self.sanitizer_flags()
        return flags + shlex.split(os.environ.get("CFLAGS", ""))

    def sanitizer_flags(self) -> list[str]:
        """Flags for compiling and linking with sanitizers or line counters."""
        flags = []
        sanitize = os.environ.get("GPUMEM_SANITIZE", "")
        if sanitize:
            flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g"]
        if is_set("GPUMEM_COVERAGE"):
            flags.append("--coverage")
        return flags


setup(
    ext_modules=[Extension("gpumem._core", sources=SOURCES, depends=HEADERS)],
    cmdclass={"build_ext": BuildCore},
)

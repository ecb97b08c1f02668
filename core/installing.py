"""The commands that install what is missing, from where packtrain itself was installed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from .errors import MissingDependency

COMPILER: Final = "gcc"
"""Debian package of the C compiler."""
HEADERS: Final = {"libjpeg-dev": "jpeglib.h", "zlib1g-dev": "zlib.h", "python3-dev": "Python.h"}
"""Debian packages that compiling packtrain's extension or pillow-simd needs, and a header of each."""
EXTENSION_NEEDS: Final = (COMPILER, "libjpeg-dev", "python3-dev")
"""Those that packtrain's extension needs."""


def require_linux() -> None:
    """Refuse other systems: datasets are published, staged and shared by what Linux's kernel offers.

    Raises:
        MissingDependency: This is another system.
    """
    if sys.platform != "linux":
        raise MissingDependency(
            f"packtrain runs on Linux, and this is {sys.platform}; here it can only be imported, for editors and type "
            "checkers. Use it on a machine with Linux, or in a container"
        )


def pip() -> str:
    """pip of this interpreter; the one on the PATH may belong to another."""
    return f"{shlex.quote(sys.executable)} -m pip"


def extra_command(name: str) -> str:
    """The command that installs an extra of packtrain, as `pyproject.toml` names it."""
    origin = _origin()
    url = origin.get("url", "")
    if "vcs_info" in origin:
        return f"pip install {shlex.quote(f'packtrain[{name}] @ {_repository(origin)}')}"
    source = _path(url) if url.startswith("file://") else "packtrain"
    option = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {option}{shlex.quote(f'{source}[{name}]')}"


def missing_packages() -> Iterator[str]:
    """Debian packages that are missing for compiling packtrain's extension or pillow-simd."""
    import sysconfig

    if shutil.which("cc") is None:
        yield COMPILER
    folders = [Path("/usr/include"), Path("/usr/local/include"), Path(sysconfig.get_path("include"))]
    if "CONDA_PREFIX" in os.environ:
        folders.append(Path(os.environ["CONDA_PREFIX"], "include"))
    for package, header in HEADERS.items():
        if not any((folder / header).exists() for folder in folders):
            yield package


def after_installing(packages: Collection[str], command: str) -> str:
    """The command, after an installation of Debian packages."""
    return f"apt-get install -y {' '.join(packages)} && {command}" if packages else command


def build_command(missing: Collection[str] | None = None) -> str:
    """The command that builds packtrain's C extension on a system with Debian's packages.

    Args:
        missing: What `missing_packages` gives; None to ask it.
    """
    missing = tuple(missing_packages()) if missing is None else missing
    return after_installing(
        [package for package in missing if package in EXTENSION_NEEDS], f"{pip()} install {_own_source()}"
    )


def _own_source() -> str:
    """Arguments for pip that build packtrain from where the installed one came from."""
    origin = _origin()
    url = origin.get("url", "")
    if origin.get("dir_info", {}).get("editable"):
        return f"--no-deps --editable {shlex.quote(_path(url))}"
    if "vcs_info" in origin:
        url = _repository(origin)
    if url and not url.endswith(".whl"):
        return f"--force-reinstall --no-deps {shlex.quote(url)}"
    return "--force-reinstall --no-deps --no-binary packtrain packtrain"


def _origin() -> dict[str, Any]:
    """Return the origin of the installation, as PEP 610 says; empty for an index of packages."""
    # It takes 30 ms to import, and every worker process imports this module.
    from importlib import metadata

    try:
        found: dict[str, Any] = json.loads(metadata.distribution("packtrain").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return {}
    return found


def _path(url: str) -> str:
    return unquote(url.removeprefix("file://"))


def _repository(origin: dict[str, Any]) -> str:
    """The address of a commit, for pip."""
    return f"{origin['vcs_info']['vcs']}+{origin['url']}@{origin['vcs_info']['commit_id']}"

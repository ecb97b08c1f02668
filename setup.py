"""Names the version and builds the C extension; all else is in pyproject.toml.

Ordinarily the extension is for this Python and the system's libjpeg, and optional: without a C compiler or
libjpeg-turbo's headers the package installs without it, and `packtrain doctor` says so. PACKTRAIN_LIBJPEG names a
folder with `include` and `lib`, as `wheels/libraries.py` makes it: then the extension is for a wheel to be released. It
must compile, holds the libjpeg of that folder, shows nothing of it to other libraries, and serves every Python from
3.11 on.
"""

import os
import re
import subprocess
import sysconfig
from email import message_from_bytes
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
UNTAGGED = "0.1.0.dev0"
LIBJPEG = os.environ.get("PACKTRAIN_LIBJPEG")
# Without the GIL there is no stable ABI yet.
STABLE = LIBJPEG is not None and not sysconfig.get_config_var("Py_GIL_DISABLED")
JPEG: dict[str, list[str]] = {"libraries": ["jpeg", "dl", "m"]}
if LIBJPEG is not None:
    JPEG = {
        "libraries": ["dl", "m"],
        "include_dirs": [str(Path(LIBJPEG, "include"))],
        "extra_objects": [str(Path(LIBJPEG, "lib", "libjpeg.a"))],
    }


def version() -> str:
    """The version: on a commit with the tag v0.1.0, it is 0.1.0; four commits later, 0.1.1.dev4 and the commit's name.

    A source distribution brings its own.
    """
    if (ROOT / "PKG-INFO").is_file():
        return str(message_from_bytes((ROOT / "PKG-INFO").read_bytes())["Version"])
    if not (ROOT / ".git").exists():
        # git would take the tags of a repository that these files merely lie in.
        return UNTAGGED
    # In a container, the files belong to somebody else.
    describe = ["git", "-c", "safe.directory=*", "describe", "--tags", "--long", "--match", "v[0-9]*"]
    try:
        described = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return UNTAGGED
    tag, commits, commit = described.strip().removeprefix("v").rsplit("-", 2)
    if commits == "0":
        return tag
    return re.sub(r"\d+$", lambda last: str(int(last[0]) + 1), tag) + f".dev{commits}+{commit}"


setup(
    version=version(),
    ext_modules=[
        Extension(
            "packtrain._codec.native._extension",
            sorted(glob("codec/native/*.c")),
            depends=sorted(glob("codec/native/*.h")),
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE else [],
            py_limited_api=STABLE,
            # Where values must equal those of another library, each operation rounds by itself.
            extra_compile_args=["-ffp-contract=off", "-fvisibility=hidden"],
            optional=LIBJPEG is None,
            **JPEG,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)

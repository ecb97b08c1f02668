"""Builds the C extension; all else is in pyproject.toml.

Ordinarily it is for this Python and the system's libjpeg, and optional: without a C compiler or libjpeg-turbo's headers
the package installs without it, and `packtrain doctor` says so. PACKTRAIN_LIBJPEG names a folder with `include` and
`lib`, as `wheels/libraries.py` makes it: then the extension is for a wheel to be released. It must compile, holds the
libjpeg of that folder, shows nothing of it to other libraries, and serves every Python from 3.11 on.
"""

import os
import sysconfig
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

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

setup(
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

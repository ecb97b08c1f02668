"""Checks wheels that are to be released, and says how large each is: ``python wheels/check.py WHEEL ...``."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from elftools.elf.elffile import ELFFile

MOST_BYTES: Final = 5_000_000
SYSTEM: Final = ("libc.so.6", "libdl.so.2", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")


def check(wheel: Path) -> None:
    """Ends the program if a wheel holds no extension or too much, or shows or needs what it should not."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        sections = [ELFFile(io.BytesIO(archive.read(name))).get_section_by_name for name in names]
    size = wheel.stat().st_size
    problems = [] if size < MOST_BYTES else [f"{size} bytes, and {MOST_BYTES} are too many"]
    if len(names) != 1:
        problems.append(f"one extension was expected, and there is {names}")
    shown, needed = set(), set()
    for section in sections:
        symbols = section(".dynsym").iter_symbols()
        shown |= {symbol.name for symbol in symbols if symbol.name and symbol.entry.st_shndx != "SHN_UNDEF"}
        needed |= {tag.needed for tag in section(".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
    if shown != {"PyInit__extension"}:
        problems.append(f"it shows {sorted(shown)}")
    if not needed <= set(SYSTEM):
        problems.append(f"it needs {sorted(needed)}")
    if "-manylinux" not in wheel.name:
        problems.append("it is not for any Linux: auditwheel repair")
    if problems:
        sys.exit(f"{wheel}: {'; '.join(problems)}")
    print(f"{wheel}: {size / 1e6:.2f} MB, needs {', '.join(sorted(needed))}")
    if "-abi3-" in wheel.name:
        subprocess.run([sys.executable, "-m", "abi3audit", "--strict", wheel], check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[1:]:
        check(Path(name))

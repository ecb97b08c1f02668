"""`make fuzz`: the extension with every libjpeg at hand, its own tests first, then a fuzzer under sanitizers.

A folder of LIBJPEGS has include/ and lib/, as `make install` of libjpeg-turbo or mozjpeg leaves them. That of the
system is always one of them. With clang the fuzzer is libFuzzer, else driver.c and gcc.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fuzz import campaign
from fuzz.test_sanitised import LIBRARIES, LOAD, SOURCES

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
SANITISERS: Final = "address,undefined"
FLAGS: Final = ("-g", "-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
WANTED: Final = tuple(
    f"{library}, version {version}"
    for library in ("libjpeg-turbo 2", "libjpeg-turbo 3", "mozjpeg")
    for version in (62, 80)
)
DESCRIBE: Final = LOAD + "print(extension.LIBJPEG, extension.LOADED, sep='|')"
TESTS: Final = LOAD + "import pytest; sys.exit(pytest.main(sys.argv[2:]))"


@dataclass(frozen=True)
class Libjpeg:
    """A libjpeg to build against; `folder` is None for that of the system."""

    folder: Path | None

    @property
    def flags(self) -> list[str]:
        """For the compiler."""
        if self.folder is None:
            return []
        lib = self.folder / "lib"
        return [f"-I{self.folder / 'include'}", f"-L{lib}", f"-Wl,-rpath,{lib}"]

    def __str__(self) -> str:
        return "the system's" if self.folder is None else str(self.folder)


def build(compiler: str, out: Path, jpeg: Libjpeg, *flags: str, sources: tuple[Path, ...] = ()) -> None:
    """Compiles the extension, and whatever else is given, to `out`."""
    includes = [f"-I{ROOT / 'codec' / 'native'}", f"-I{sysconfig.get_path('include')}"]
    # The folder's headers come before those of the system, and its library before the system's.
    subprocess.run(
        [compiler, *flags, *jpeg.flags, "-ffp-contract=off", *includes, *SOURCES, *sources, "-o", out, *LIBRARIES],
        check=True,
    )


def test(jpeg: Libjpeg, work: Path) -> str | None:
    """Runs the extension's tests with a libjpeg; says which one it is, or None if they fail."""
    extension = work / f"_extension{sysconfig.get_config_var('EXT_SUFFIX')}"
    build("cc", extension, jpeg, "-O2", "-shared", "-fPIC")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "links"), str(ROOT / "tests")))}
    found = subprocess.run(
        [sys.executable, "-c", DESCRIBE, extension], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    if found.returncode:
        print(f"  it does not fit: {found.stderr.strip().splitlines()[-1]}")
        return None
    built, loaded = found.stdout.strip().split("|")
    print(f"  built with {built}\n  loaded: {loaded}", flush=True)
    paths = [str(ROOT / "tests" / "codec" / name) for name in ("native", "test_cut.py")]
    # Processes of their own, which these tests start, would import the ordinary extension.
    options = ["-q", "-p", "no:cacheprovider", "-k", "not memory_that", "--no-header", "--tb=short"]
    done = subprocess.run(
        [sys.executable, "-c", TESTS, extension, *options, *paths],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    print(f"  tests: {done.stdout.strip().splitlines()[-1]}", flush=True)
    if done.returncode:
        print(done.stdout)
        return None
    version = re.match(r"libjpeg (\d+)", loaded)
    library = re.match(r"libjpeg-turbo \d|mozjpeg", built)
    return f"{library[0] if library else built}, version {version[1] if version else '?'}"


def fuzz(jpeg: Libjpeg, work: Path, clang: str | None, seconds: int, seed: int) -> bool:
    """Fuzzes under AddressSanitizer and UndefinedBehaviorSanitizer; False if something was found."""
    seeds, fuzzer = work / "seeds", work / "fuzzer"
    seeds.mkdir(exist_ok=True)
    for number, data in enumerate((*campaign.victims().values(), *campaign.coefficient_records())):
        for choice in (b"\0\0\xff\xff\0\1", b"\x40\x50\x60\x70\x09\0", b"\x80\x80\x30\x90\x04\1"):
            (seeds / f"{number}-{choice.hex()}").write_bytes(choice + data)
    library = sysconfig.get_config_var("LIBDIR")
    python = (f"-L{library}", f"-Wl,-rpath,{library}", f"-lpython{sysconfig.get_config_var('LDVERSION')}")
    target = HERE / "target.c"
    if clang:
        build(clang, fuzzer, jpeg, *FLAGS, f"-fsanitize=fuzzer,{SANITISERS}", *python, sources=(target,))
        command: list[str | Path] = [
            fuzzer,
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            "-max_len=8192",
            "-timeout=60",
            seeds,
        ]
        command[1:1] = ["-print_final_stats=1", "-rss_limit_mb=4096"]
    else:
        # The driver itself is not watched: it would count its own code as reached.
        driver = work / "driver.o"
        subprocess.run(["cc", "-O1", "-c", HERE / "driver.c", "-o", driver], check=True)
        trace = "-fsanitize-coverage=trace-pc"
        build("cc", fuzzer, jpeg, *FLAGS, f"-fsanitize={SANITISERS}", trace, str(driver), *python, sources=(target,))
        command = [fuzzer, str(seconds), str(seed), seeds]
    environment = {
        **os.environ,
        "PYTHONMALLOC": "malloc",
        # The interpreter frees much only when it ends; test_fuzz.py looks for leaks.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONHOME": sys.base_prefix,
    }
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, errors="replace")
    output = (done.stdout + done.stderr).strip().splitlines()
    counts = [line for line in output if "stat::number_of_executed_units" in line or " inputs, " in line]
    print(f"  fuzzed for {seconds} s, seed {seed}: {'; '.join(counts) or 'no counts'}", flush=True)
    if done.returncode:
        print("\n".join(output[-60:]))
        for name in ("current", *(path.name for path in work.glob("crash-*"))):
            if (work / name).exists():
                kept = Path.cwd() / f"fuzz-{name}"
                shutil.copyfile(work / name, kept)
                print(f"  the input: {kept}")
    return done.returncode == 0


def main() -> int:
    """Runs everything; the exit code says whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each libjpeg; 0 only tests (default: 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clang", default="clang", help="a clang with libFuzzer (default: clang)")
    parser.add_argument("--no-tests", action="store_true", help="only fuzz")
    parser.add_argument("folders", nargs="*", type=Path)
    given = parser.parse_args()
    clang = shutil.which(given.clang)
    sound, found = True, set()
    for folder in (None, *given.folders):
        jpeg = Libjpeg(folder and folder.resolve())
        print(f"{jpeg}:", flush=True)
        with TemporaryDirectory(prefix="packtrain-fuzz-") as name:
            if not given.no_tests:
                which = test(jpeg, Path(name))
                sound &= which is not None
                found.add(which)
            sound &= not given.seconds or fuzz(jpeg, Path(name), clang, given.seconds, given.seed)
    print("fuzzer: " + (f"libFuzzer of {clang}" if clang else f"driver.c with gcc; {given.clang} was not found"))
    for wanted in WANTED:
        if wanted not in found and not given.no_tests:
            print(f"not found: {wanted}; name its folder: make fuzz LIBJPEGS=...")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())

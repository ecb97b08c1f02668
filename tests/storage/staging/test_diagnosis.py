"""Laws of the warnings about unsuitable folders: private to a job, too small, swapped, no faster than the source."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from packtrain._core.memory import MemoryLeft
from packtrain._core.mounts import Mount, file_system, mount_of, parse_mounts, read_mounts
from packtrain._storage.staging.capacity import FileSystem, private, swapping, warnings

GiB = 1 << 30
HOST = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
24 27 0:6 / /dev rw,relatime shared:2 - devtmpfs devtmpfs rw,size=12334460k,mode=755
25 24 0:23 / /dev/shm rw,relatime shared:3 - tmpfs tmpfs rw,size=24684084k
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
28 27 254:16 / /local\\040disk rw shared:5 - xfs /dev/nvme0n1 rw
"""
# As job_container/tmpfs leaves it: the old /dev/shm below a new one, /tmp bound to a folder of the job.
JOB = (
    HOST.replace("27 1 254:0", "47 1 254:0").replace(" 27 ", " 47 ").replace("shared:", "master:")
    + "90 25 0:77 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw\n"
    + "91 47 254:0 /var/slurm/7/.7/_tmp /tmp rw,relatime - ext4 /dev/vda rw,discard\n"
)
# The same, where the old one was unmounted first.
CLEAN_JOB = "".join(line for line in JOB.splitlines(True) if not line.startswith("25 ")).replace("90 25", "90 24")
CONTAINER = """\
500 400 0:90 / / rw,relatime - overlay overlay rw,lowerdir=/a:/b
501 500 0:91 / /proc rw - proc proc rw
502 500 0:92 / /dev rw - tmpfs tmpfs rw,size=65536k
503 502 0:93 / /dev/shm rw - tmpfs shm rw,size=65536k
504 500 254:16 /data /data rw - xfs /dev/nvme0n1 rw
"""


def said(path: str, ours: str, everyones: str = HOST, job: str | None = "7") -> str | None:
    found = list(private(Path(path), parse_mounts(ours), parse_mounts(everyones), job))
    assert len(found) <= 1
    return found[0] if found else None


class TestPrivate:
    @pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/deep/er", "/tmp", "/local disk", "/local disk/x", "/"])
    def test_what_everybody_sees_is_not(self, path: str) -> None:
        assert said(path, HOST) is None

    @pytest.mark.parametrize("ours", [JOB, CLEAN_JOB])
    @pytest.mark.parametrize(
        ("path", "point"), [("/dev/shm", "/dev/shm"), ("/dev/shm/x", "/dev/shm"), ("/tmp/x", "/tmp")]
    )
    def test_what_a_job_was_given_is(self, ours: str, path: str, point: str) -> None:
        assert said(path, ours) == (
            f"{point} is private to Slurm job 7: other jobs cannot use the copy, and it is deleted when the job ends. "
            f"Use a disk of the node (`to`), or ask the administrator to leave {point} out of Dirs= in "
            "job_container.conf"
        )

    @pytest.mark.parametrize("ours", [JOB, CLEAN_JOB])
    def test_what_a_job_shares_is_not(self, ours: str) -> None:
        assert said("/local disk/x", ours) is None
        assert said("/home", ours) is None

    def test_without_a_job(self) -> None:
        found = said("/dev/shm", CONTAINER, job=None)
        assert found is not None and "private to this container or service" in found and "Slurm" not in found
        assert "/srv is private" in (said("/srv", CONTAINER, job=None) or "")

    def test_who_sees_only_itself_cannot_tell(self) -> None:
        """In a container, the first process is the container's own; with hidepid, it is invisible."""
        assert said("/dev/shm", CONTAINER, CONTAINER) is None
        assert said("/dev/shm", JOB, "") is None
        assert said("/dev/shm", "") is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace")
    @pytest.mark.parametrize("job", ["11", None])
    def test_a_real_one(self, tmp_path: Path, job: str | None) -> None:
        place, source = tmp_path / "place", tmp_path / "source"
        place.mkdir()
        source.mkdir()
        code = (
            "import sys; from pathlib import Path; from packtrain._storage.staging.capacity import warnings\n"
            "print(*warnings(Path(sys.argv[1]), Path(sys.argv[2]), 1000), sep='\\n')"
        )
        environment = {**os.environ, "SLURM_JOB_ID": job or ""}
        if job is None:
            del environment["SLURM_JOB_ID"]

        def found(script: str) -> str:
            command = ["unshare", "-m", "sh", "-c", script, sys.executable, "-c", code, str(place), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if "unshare failed" in done.stderr:
                pytest.skip(done.stderr)
            assert done.returncode == 0, done.stderr
            return done.stdout

        mounted = found('mount -t tmpfs none "$3" && exec "$0" "$@"')
        assert f"{place} is private to {'Slurm job 11' if job else 'this container'}" in mounted
        assert "are on the same file system" not in mounted
        assert "private" not in found('exec "$0" "$@"')


tmpfs = Mount(2, 0, "0:9", Path("/"), Path("/dev/shm"), "tmpfs", frozenset(["rw"]))
shm = FileSystem(Path("/dev/shm"), 32 * GiB, 5 * GiB, tmpfs, (MemoryLeft(60 * GiB, 64 * GiB),))
disk = replace(shm, mount=replace(tmpfs, kind="ext4"), memory=())


class TestSwapping:
    SWAPS = "MemTotal:       67108864 kB\nMemAvailable:   16777216 kB\nSwapTotal:       8388608 kB\n"

    def test_much_on_a_machine_that_swaps(self) -> None:
        (text,) = swapping(shm, 9 * GiB, self.SWAPS)
        assert text.startswith("this machine has 8.0 GiB of swap, and staging takes 9.0 GiB of 16.0 GiB free memory")

    @pytest.mark.parametrize(
        ("place", "need", "meminfo"),
        [
            (shm, 8 * GiB, SWAPS),
            (disk, 9 * GiB, SWAPS),
            (shm, 9 * GiB, SWAPS.replace("8388608", "0")),
            (shm, 9 * GiB, ""),
            (replace(shm, mount=replace(tmpfs, options=frozenset(["noswap"]))), 9 * GiB, SWAPS),
        ],
    )
    def test_nothing_otherwise(self, place: FileSystem, need: int, meminfo: str) -> None:
        assert not list(swapping(place, need, meminfo))


def test_a_copy_beside_its_source(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    found = warnings(tmp_path, tmp_path / "a", 1000)
    assert [text for text in found if "are on the same file system" in text]


class TestMounts:
    def test_every_mount_is_found_by_its_own_point(self) -> None:
        """The kernel's device numbers are the oracle."""
        mounts = read_mounts()
        compared = 0
        for point in {mount.point for mount in mounts}:
            try:
                device = os.stat(point).st_dev
            except OSError:
                continue
            found = mount_of(point, mounts)
            assert found is not None
            if found.kind != "btrfs":
                assert found.device == f"{os.major(device)}:{os.minor(device)}", point
                compared += 1
        assert compared > 1

    @pytest.mark.parametrize(
        ("path", "mounts", "id"),
        [
            ("/dev/shm/x", JOB, 90),  # the uppermost
            ("/dev/shm/x", HOST + "99 24 0:99 / /dev rw - tmpfs tmpfs rw\n", 99),  # which hides what lies below
            ("/local disk2", HOST, 27),
            ("/data", "60 27 0:5 / /proc rw - proc proc rw\n", None),  # after chroot
            ("/proc/1", "60 27 0:5 / /proc rw - proc proc rw\n", 60),
        ],
    )
    def test_the_mount_of_a_path(self, path: str, mounts: str, id: int | None) -> None:
        found = mount_of(Path(path), parse_mounts(mounts))
        assert (None if found is None else found.id) == id
        # Those that hold the path are enough.
        holding = parse_mounts(mounts, Path(path))
        assert mount_of(Path(path), holding) == found
        assert all(Path(path).is_relative_to(mount.point) for mount in holding)

    def test_what_is_no_line_is_left_out(self) -> None:
        assert len(parse_mounts(f"nonsense\n{HOST}\n1 2\n\n")) == len(parse_mounts(HOST)) == 5

    def test_a_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("/proc")
        assert file_system(tmp_path / "link") == "proc"

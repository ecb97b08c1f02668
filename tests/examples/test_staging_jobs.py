"""The job scripts for staging do what their README says: each is run as it is, with a small dataset and trainer.

Those for Slurm have tests of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from helpers.jobs import SCRIPTS, Bench, workbench
from helpers.support import tool

# Each starts a program that imports torch: too slow for every run.
pytestmark = pytest.mark.complete

SHELL: Final = sorted(path for path in SCRIPTS.glob("*/*") if path.suffix in {".sh", ".sbatch"})
PODS: Final = sorted(SCRIPTS.glob("kubernetes/*.yaml"))


@pytest.fixture
def bench() -> Iterator[Bench]:
    with workbench() as it:
        yield it


def test_train_stages_once_and_gives_each_command_the_path(bench: Bench) -> None:
    for _ in range(2):
        done = bench.run(SCRIPTS / "bash/train.sh")
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    results = bench.results()
    assert sorted(result["script"] for result in results) == ["evaluate.py", "evaluate.py", "train.py", "train.py"]
    (path,) = {result["path"] for result in results}
    bench.holds(path)
    assert [result["content"] for result in results] == 4 * [bench.content]
    assert len(bench.copies) == 1
    assert bench.leased() == [False]


def test_train_goes_on_with_the_source_where_there_is_no_room(bench: Bench) -> None:
    done = bench.run(SCRIPTS / "bash/train.sh", BUDGET="1KiB")
    assert done.returncode == 0
    assert {result["path"] for result in bench.results()} == {str(bench.dataset)}
    assert "`--budget`" in done.stderr


def test_train_fails_where_training_fails(bench: Bench) -> None:
    assert bench.run(SCRIPTS / "bash/train.sh", CODE="7").returncode == 7
    assert [result["script"] for result in bench.results()] == ["train.py"]


def test_train_leased_holds_the_lease_while_the_command_runs(bench: Bench) -> None:
    go = bench.work / "go"
    environment = os.environ | bench.variables | {"HOLD": str(go), "CODE": "7"}
    with subprocess.Popen([SCRIPTS / "bash/train_leased.sh"], cwd=bench.work, env=environment) as process:
        try:
            while not bench.results():
                assert process.poll() is None
                time.sleep(0.05)
            assert bench.leased() == [True]
        finally:
            go.touch()
    assert process.returncode == 7
    assert bench.leased() == [False]
    (result,) = bench.results()
    assert result["path"] == result["variable"]
    bench.holds(result["path"])
    assert result["content"] == bench.content


def test_train_leased_does_not_train_where_there_is_no_room(bench: Bench) -> None:
    assert bench.run(SCRIPTS / "bash/train_leased.sh", BUDGET="1KiB").returncode not in (0, 7)
    assert bench.results() == []


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    done = subprocess.run([tool("shellcheck", "shellcheck"), script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_readme_names_each_script() -> None:
    links = set(re.findall(r"\]\(([^)]+)\)", (SCRIPTS / "README.md").read_text()))
    assert links == {str(path.relative_to(SCRIPTS)) for path in (*SHELL, *PODS)}


# --- Kubernetes ---


def pod(path: Path) -> dict[str, Any]:
    """A pod's description."""
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def gibibytes(quantity: str) -> int:
    """A quantity of memory, as Kubernetes or packtrain write it."""
    return int(re.fullmatch(r"(\d+)Gi?B?", quantity)[1])  # type: ignore[index]


@pytest.mark.parametrize(
    "path",
    PODS,
    ids=lambda path: path.stem,
)
def test_a_pod_stages_and_then_trains_on_the_copy(bench: Bench, path: Path) -> None:
    spec = pod(path)["spec"]
    (first,), (second,) = spec["initContainers"], spec["containers"]
    volume = {mount["mountPath"]: mount["name"] for mount in first["volumeMounts"]}
    assert set(volume.values()) == {one["name"] for one in spec["volumes"]}
    assert first["volumeMounts"] == second["volumeMounts"]
    assert {"runAsUser", "runAsGroup"} <= spec["securityContext"].keys(), "both are to be the same user"
    words = first["command"]
    assert words[words.index("--to") + 1] in volume
    # This machine's folders in place of the pod's; and it need not have as much to spare.
    swap = {
        "/data/imagenet-train": str(bench.dataset),
        "/dev/shm": str(bench.to),
        "/nvme": str(bench.to),
        "8GiB": "1MiB",
    }
    staged = bench.run(*(swap.get(word, word) for word in words))
    assert staged.returncode == 0, staged.stderr
    trained = bench.run(*(swap.get(word, word) for word in (*second["command"], *second["args"])))
    assert trained.returncode == 0, trained.stderr
    (result,) = bench.results()
    assert result["path"] == staged.stdout.strip() == result["variable"]
    assert result["content"] == bench.content
    assert len(bench.copies) == 1


def test_a_pod_with_a_copy_in_memory_has_memory_for_it() -> None:
    spec = pod(SCRIPTS / "kubernetes/pod.yaml")["spec"]
    (memory,) = (volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume)
    words = spec["initContainers"][0]["command"]
    budget, reserve = (gibibytes(words[words.index(name) + 1]) for name in ("--budget", "--reserve"))
    assert memory["medium"] == "Memory"
    assert gibibytes(memory["sizeLimit"]) >= budget + reserve
    for container in (*spec["initContainers"], *spec["containers"]):
        assert gibibytes(container["resources"]["limits"]["memory"]) > gibibytes(memory["sizeLimit"])


@pytest.mark.parametrize("path", PODS, ids=lambda path: path.stem)
def test_kubectl_knows_every_field(path: Path) -> None:
    """What kubectl reads into its own types and writes again lacks what it does not know."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    command = [kubectl, "set", "env", "--local", "--output=json", "A=B", "--filename", str(path)]
    done = subprocess.run(
        command, env=os.environ | {"KUBECONFIG": "/dev/null"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert lacking(pod(path), json.loads(done.stdout)) == []


def lacking(wanted: Any, found: Any, at: str = "") -> list[str]:
    """The places at which `found` does not have what `wanted` has."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [place for key, value in wanted.items() for place in lacking(value, found.get(key), f"{at}.{key}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [place for i, value in enumerate(wanted) for place in lacking(value, found[i], f"{at}[{i}]")]
    return [] if str(wanted) == str(found) else [at]


def test_both_prologs_have_the_same_settings() -> None:
    texts = [(SCRIPTS / "slurm" / name).read_text() for name in ("prolog.sh", "task_prolog.sh")]
    first, second = (
        re.findall(r"^(?:PARTITION|DATASET|TO|BUDGET|PACKTRAIN)=.*$", text, re.MULTILINE) for text in texts
    )
    assert first == second and len(first) == 5

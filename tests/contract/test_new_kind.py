"""A new kind of field is an entry in `core/kinds.py`, its encoding and its decoding; all else follows.

Other modules hold on to the table when they are imported, so the kind is added in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.support import ONE_FORMAT

SCRIPT = """
import sys
from types import MappingProxyType

from packtrain._core import kinds

TAGS = kinds.Kind("tags", "tags", "Words between commas.", "tags", ("strings",), sent="json")
kinds.KINDS = MappingProxyType({**kinds.KINDS, "tags": TAGS})

from packtrain._codec import values

known = values.decode_value


def decode_value(field, record, **options):
    return str(record, "utf-8").split(",") if field.kind == "tags" else known(field, record, **options)


values.decode_value = decode_value

from packtrain import Loader, open_dataset
from packtrain._cli.main import group

format, *sources = sys.argv[1:]
for source in sources:
    out = source + ".packed"
    group.main(["pack", source, out, "--tags", "words", "--format", format, "--workers", "1"], standalone_mode=False)
    group.main(["verify", "--decode", "--workers", "1", out], standalone_mode=False)
    dataset = open_dataset(out, fields=("words",))
    with Loader(dataset, 2, num_workers=1) as loader:
        print([words for batch in loader for words in batch.words])
"""


@pytest.mark.complete
@ONE_FORMAT
def test_a_kind_is_packed_verified_and_loaded(tmp_path: Path, format_name: str) -> None:
    rows = ["a,b", "c", "d,e,f", "g"]
    (tmp_path / "list.csv").write_text("words\n" + "".join(f'"{row}"\n' for row in rows))
    sources = ["list.csv"]
    if find_spec("pyarrow"):
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"words": rows}), tmp_path / "list.parquet")
        sources.append("list.parquet")
    command = [sys.executable, "-c", SCRIPT, format_name, *(str(tmp_path / source) for source in sources)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    loaded = [line for line in ran.stdout.splitlines() if line.startswith("[")]
    assert loaded == [str([row.split(",") for row in rows])] * len(sources)

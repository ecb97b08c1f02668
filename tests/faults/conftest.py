"""The fault library, built once per session."""

from pathlib import Path

import pytest
from faults.harness import NoCompilerError, build


@pytest.fixture(scope="session")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("faultlib"))
    except NoCompilerError as error:
        pytest.skip(str(error))

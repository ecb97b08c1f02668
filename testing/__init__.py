"""Suites of tests for what others write for packtrain; `packtrain.testing` is their public name."""

from packtrain._core.installing import extra_command
from packtrain.errors import MissingDependency

try:
    import hypothesis as hypothesis
    import pytest
except ImportError as error:
    raise MissingDependency(f"packtrain.testing needs pytest and Hypothesis: `{extra_command('testing')}`") from error

# Only of test files by name does pytest explain the assertions.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in ("dataset", "loading", "order", "transform")))

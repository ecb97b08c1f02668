"""Freed memory goes back to the system, and the program's own limits are left alone."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from packtrain._extras.train_val import train_val


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The requests to the C library."""
    calls: list[tuple[int, ...]] = []
    library = SimpleNamespace(mallopt=lambda *each: calls.append(each), malloc_trim=lambda *each: calls.append(each))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_what_the_allocator_keeps_is_limited(asked: list[Any]) -> None:
    train_val.limit_free_memory()
    assert asked == [(-1, 8 << 20), (-3, 1 << 20)]


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_limits_of_the_program_stay(asked: list[Any], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    train_val.limit_free_memory()
    assert asked == []


def test_free_memory_is_given_back(asked: list[Any]) -> None:
    train_val.release_free_memory(dali=False)
    assert asked == [(0,)]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    train_val.limit_free_memory()
    train_val.release_free_memory(dali=False)

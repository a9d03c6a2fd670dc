from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rloop_core.verifier import Verifier


def tables(name: str) -> dict[str, Any]:
    """Return the tables of a TOML file beside this one."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def verifier() -> Iterator[Verifier]:
    with Verifier(workers=1) as judge:
        yield judge

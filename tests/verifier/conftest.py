from __future__ import annotations

from collections.abc import Iterator

import pytest

from rloop_core.verifier import Verifier


@pytest.fixture(scope="session")
def verifier() -> Iterator[Verifier]:
    with Verifier(workers=1) as judge:
        yield judge

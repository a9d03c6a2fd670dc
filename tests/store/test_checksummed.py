"""One altered bit anywhere in a manifest or a checksummed record is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rloop_core.errors import ArtifactDamaged
from rloop_core.store import Store, dump_checksummed, load_checksummed, read_manifest
from tests.store.conftest import published

CONTENT = {"schema_version": 1, "name": "é", "share": 0.1, "rows": [["a", 1], ["b", None]], "note": "x" * 40}


def _flipped(text: bytes, bit: int) -> bytes:
    place, number = divmod(bit % (8 * len(text)), 8)
    return text[:place] + bytes([text[place] ^ 1 << number]) + text[place + 1 :]


@settings(max_examples=50)
@given(st.integers(0, 10**6))
def test_an_altered_bit_of_a_record(bit: int) -> None:
    text = dump_checksummed(CONTENT, indent=1)
    assert load_checksummed(text) == CONTENT
    with pytest.raises(ValueError):
        load_checksummed(_flipped(text, bit))


@given(bit=st.integers(0, 10**6))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_altered_bit_of_a_manifest(bit: int, local: Store, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "file").write_text("content")
    key = "run/iteration-000/rft/manifest.json"
    if not local.exists(key):
        figures = {"identity": {"a": 1}, "counts": {"rows": 3}, "metrics": {"loss": 0.25}, "seconds": 2.5}
        published(local, tmp_path / "out", versions={"python": "3.11"}, **figures)
        local.write_bytes("whole", local.read_bytes(key))
    whole = local.read_bytes("whole")
    local.write_bytes(key, whole)
    manifest = read_manifest(local, "run", 0, "rft")
    assert manifest is not None and manifest.versions == {"python": "3.11"}
    local.write_bytes(key, _flipped(whole, bit))
    with pytest.raises(ArtifactDamaged):
        read_manifest(local, "run", 0, "rft")


def test_records_of_older_releases_are_read_as_they_are() -> None:
    assert load_checksummed(b'{"a": 1}') == {"a": 1}
    with pytest.raises(ValueError, match="not a JSON object"):
        load_checksummed(b"[1]")

"""The real command with its store on a real S3 server on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SMOKE, start_rloop

pytestmark = pytest.mark.process


@pytest.mark.long
def test_a_run_on_s3_resumes_from_the_bucket_alone(s3_server: str, tmp_path: Path) -> None:
    """The second start has only the bucket: another scratch folder, another Prefect."""

    def start(scratch: str) -> Any:
        common = ["run", "--config", str(SMOKE), "--store", f"{s3_server}/team", "--iterations", "1", "--json"]
        done = start_rloop(
            *common, "--set", f"placement.scratch={tmp_path / scratch}", home=tmp_path / f"home-{scratch}"
        )
        return json.loads(done.stdout)

    first, again = start("a"), start("b")
    assert len(first["stages_run"]) == 6
    assert again["nothing_to_do"]
    assert again["digests"] == first["digests"]

"""The real command with its store on a real S3 server on loopback."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SMOKE, run_rloop

BUCKET = "rloop-runs"


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    """Environment of a command that finds a fresh bucket."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=keys["AWS_DEFAULT_REGION"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_bucket(Bucket=BUCKET)
    yield {**os.environ, **keys, "AWS_ENDPOINT_URL": endpoint}
    server.stop()


def test_a_run_on_s3_resumes_from_the_bucket_alone(s3: dict[str, str], tmp_path: Path) -> None:
    """The second start knows nothing but the bucket: another scratch folder, another Prefect."""
    uri = f"s3://{BUCKET}/team"
    common = ["run", "--config", str(SMOKE), "--store", uri, "--iterations", "1", "--json"]
    first = json.loads(
        run_rloop(*common, "--set", f"placement.scratch={tmp_path / 'a'}", home=tmp_path / "home", env=s3).stdout
    )
    assert len(first["stages_run"]) == 6
    again = json.loads(
        run_rloop(*common, "--set", f"placement.scratch={tmp_path / 'b'}", home=tmp_path / "other", env=s3).stdout
    )
    assert again["nothing_to_do"]
    assert again["digests"] == first["digests"]

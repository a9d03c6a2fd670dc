"""The simulation of long runs, on a small scale."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.measure import measured
from benchmarks.scale.simulated import config_for
from rloop_core.stages.inputs import stages_of
from rloop_core.store import Store, publish

ITERATIONS = 6
FILES = {
    "explore": ("shards/step-000001.rank-00.parquet", "policy/model.safetensors", "metrics.jsonl"),
    "harvest": ("success_rates.parquet",),
    "filter": ("experts.parquet", "ledger.json"),
    "rft": ("policy/model.safetensors",),
    "evaluate": ("metrics.json",),
}

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one iteration with meaningless files: the simulation copies them and reads none."""
    folder = tmp_path_factory.mktemp("real")
    store = Store(str(folder / "store"))
    config = config_for(store.uri, folder, "smoke", 1)
    for iteration, stage in stages_of(config):
        out = folder / f"{iteration}-{stage}"
        for name in FILES[stage]:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(name)
        publish(
            store, out, run="smoke", iteration=iteration, stage=stage, fingerprint="f" * 64, inputs=(), identity={},
            counts={}, metrics={}, versions={}, seed=0, seconds=1.0,
        )  # fmt: skip
    return folder / "store"


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """Environment of a program with a fresh bucket."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint, region = f"http://{host}:{port}", "us-east-1"
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name=region, aws_access_key_id="test", aws_secret_access_key="test"
    )
    client.create_bucket(Bucket="scale")
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": region}
    yield {**os.environ, **keys, "AWS_ENDPOINT_URL": endpoint, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    server.stop()


def test_a_stage_of_a_long_run_asks_the_store_no_more_than_one_of_a_short_run(
    real: Path, s3: dict[str, str], tmp_path: Path
) -> None:
    common = ("s3://scale/runs", tmp_path, "long", ITERATIONS)
    built = measured("scale.store:build", *common, real, environment=s3)
    assert built["stages"] == 5 * ITERATIONS + 1
    assert built["requests_first"] == built["requests_last"] > 0
    again = measured("scale.store:check", *common, environment=s3)
    assert again["stages"] == built["stages"]
    with_copies = measured("scale.store:check", *common, environment=s3)
    assert with_copies["all_requests"] <= 2 * built["stages"] + 12, "a manifest and a listing a stage; lease, problems"
    asked = measured("scale.store:remaining", *common, environment=s3)
    assert asked["missing"] == 0
    assert asked["all_requests"] <= built["stages"] + 6, "each manifest once"
    objects = measured("scale.store:objects", *common, environment=s3)
    assert objects["objects"] > 20 * ITERATIONS, "an explore artifact has a file a RL step"


def test_simulated_stages_go_through_the_flow(real: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.touch()
    settings = {"PREFECT_HOME": str(tmp_path / "home"), "PREFECT_API_URL": "", "HF_HUB_OFFLINE": "1"}
    arguments = (tmp_path / "store", tmp_path / "scratch", "one,two", 1, real, 0.0, go)
    found = measured("scale.flow:run_some", *arguments, environment={**os.environ, **settings})["runs"]
    assert {name: run["error"] for name, run in found.items()} == {"one": None, "two": None}
    assert {name: len(run["spans"]) for name, run in found.items()} == {"one": 7, "two": 7}, "with preflight"

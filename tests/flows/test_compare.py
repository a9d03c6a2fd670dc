"""Flows `compare` and `evaluate`: what they make is in the store and shown, and what is impossible fails the flow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect import get_client

from flows.compare import compare
from flows.evaluate import evaluate
from rloop_core.config import as_vanilla
from rloop_core.errors import ConfigError
from rloop_core.store import Store
from tests.conftest import embedded_prefect
from tests.results.paired import make_pair, pair_config

pytestmark = [pytest.mark.process, pytest.mark.long]


def test_the_flow_writes_the_page_and_fails_on_arms_that_are_not_comparable(tmp_path: Path) -> None:
    config = pair_config(1)
    arms = make_pair(tmp_path, config, as_vanilla(config))
    for arm in arms:
        arm.finish()
    store = tmp_path / "store"
    embedded_prefect()
    page = compare("tiny", "tiny-vanilla-rl", str(store))
    assert Path(page) == store / "tiny/compare-tiny-vanilla-rl/compare.html" and Path(page).is_file()
    with get_client(sync_client=True) as client:
        shown = {one.key: str(one.data) for one in client.read_artifacts()}
    assert json.loads(shown["tiny-tiny-vanilla-rl-compare"])[0]["set"] == r"held-out \<b\>"
    assert "](data:image/svg+xml;base64," in shown["tiny-tiny-vanilla-rl-compare-figure"]
    with pytest.raises(ConfigError, match="not comparable"):
        compare("tiny-vanilla-rl", "tiny", str(store))


def test_the_pages_files_go_to_a_remote_store_and_the_state_says_where(tmp_path: Path, s3_server: str) -> None:
    config = pair_config(1)
    for arm in make_pair(tmp_path, config, as_vanilla(config)):
        arm.finish()
    local, remote = Store(str(tmp_path / "store")), Store(f"{s3_server}/compared")
    for key in local.list(""):
        remote.upload(local.local_path(key), key)
    embedded_prefect()
    state = compare("tiny", "tiny-vanilla-rl", remote.uri, return_state=True)
    folder = "tiny/compare-tiny-vanilla-rl"
    assert state.message == f"tiny against tiny-vanilla-rl: {remote.uri}/{folder}/compare.html"
    names = {key.removeprefix(f"{folder}/") for key in remote.list(folder)}
    assert {"compare.html", "table-1.csv", "lineage.json"} <= names and b"<html" in remote.read_bytes(
        f"{folder}/compare.html"
    )


def test_an_evaluations_samples_and_metrics_go_to_the_store(tmp_path: Path) -> None:
    embedded_prefect()
    state = evaluate(
        problems="reasoning_gym:chain_sum", limit=3, samples=2, template="plain", max_tokens=24,
        store=str(tmp_path / "store"), out=str(tmp_path / "mine"), return_state=True,
    )  # fmt: skip
    folder = tmp_path / "store/evaluations/mine"
    assert state.message.startswith("bundled on reasoning_gym:chain_sum: avg@2 ") and state.message.endswith(
        str(folder)
    )
    assert json.loads((folder / "metrics.json").read_text())["samples"] == 6
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {
        path.name for path in (tmp_path / "mine").rglob("*") if path.is_file()
    }

"""Flow `compare`: the page is written and shown, and a pair that is not comparable fails the flow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect import get_client

from flows.compare import compare
from rloop_core.config import as_vanilla
from rloop_core.errors import ConfigError
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
    assert json.loads(shown["tiny-tiny-vanilla-rl-compare"])[0]["set"] == "held-out <b>"
    assert "](data:image/svg+xml;base64," in shown["tiny-tiny-vanilla-rl-compare-figure"]
    with pytest.raises(ConfigError, match="not comparable"):
        compare("tiny-vanilla-rl", "tiny", str(store))

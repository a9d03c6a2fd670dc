"""Flow `compare` on an embedded Prefect: the page is written, and a pair that is not comparable fails the flow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rloop_core.config import as_vanilla
from tests.conftest import ROOT, command_environment
from tests.report.paired import make_pair, pair_config

SCRIPT = """
import json
import sys
from pathlib import Path
from prefect import get_client
from flows.compare import compare
from flows.embedded import prefect_api
from rloop_core.errors import ConfigError
with prefect_api():
    print(compare("tiny", "tiny-vanilla-rl", sys.argv[1]))
    with get_client(sync_client=True) as client:
        shown = {one.key: one.data for one in client.read_artifacts()}
    Path(sys.argv[2]).write_text(json.dumps(shown))
    try:
        compare("tiny-vanilla-rl", "tiny", sys.argv[1])
    except ConfigError as error:
        print(error)
"""


def test_the_flow_writes_the_page_and_fails_on_arms_that_are_not_comparable(tmp_path: Path) -> None:
    config = pair_config(1)
    arms = make_pair(tmp_path, config, as_vanilla(config))
    for arm in arms:
        arm.finish()
    store = tmp_path / "store"
    environment = command_environment(tmp_path / "home") | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(store), str(tmp_path / "shown.json")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page, refusal = done.stdout.splitlines()[-2:]
    assert Path(page) == store / "tiny/compare-tiny-vanilla-rl/compare.html" and Path(page).is_file()
    shown = json.loads((tmp_path / "shown.json").read_text())
    assert json.loads(shown["tiny-tiny-vanilla-rl-compare"])[0]["set"] == "held-out <b>"
    assert "](data:image/svg+xml;base64," in shown["tiny-tiny-vanilla-rl-compare-figure"]
    assert "not comparable" in refusal

"""The store's credentials from a Prefect block: enough for a worker without any, and written nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rloop_core.errors import ConfigError
from tasks.credentials import BLOCK, VARIABLES, _checked
from tests.flows.server import prefect_server

pytestmark = pytest.mark.process

_SAVE = """
import sys
from prefect.blocks.system import Secret
Secret(value={"AWS_ACCESS_KEY_ID": sys.argv[1], "AWS_SECRET_ACCESS_KEY": sys.argv[2]}).save("store-keys")
"""


@pytest.mark.long
def test_a_worker_without_keys_takes_them_from_the_block_that_its_deployment_names(
    s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["a-key-of-nobody", "a-secret-of-nobody"]
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    place = {name: os.environ[name] for name in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "NO_PROXY", "no_proxy")}
    place["AWS_SHARED_CREDENTIALS_FILE"] = place["AWS_CONFIG_FILE"] = os.devnull
    with prefect_server(tmp_path) as server:
        server.deploy()
        subprocess.run([sys.executable, "-c", _SAVE, *keys], env=server.environment(), check=True, timeout=120)
        with server.worker("rloop-cpu", **place):
            asked = {"config_file": "smoke", "overrides": ["policy.path=/none"], "store": f"{s3_server}/none"}
            without = server.wait(server.start("rloop/iterate-cpu", **asked))
            deployment = server.get("/deployments/name/rloop/iterate-cpu")
            server.patch(f"/deployments/{deployment['id']}", {"job_variables": {"env": {BLOCK: "store-keys"}}})
            having = server.wait(server.start("rloop/iterate-cpu", **asked))
        assert "credentials" in without["state"]["message"]
        assert "there is no model at '/none'" in having["state"]["message"]
    secret = keys[1].encode()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()] == []


@pytest.mark.parametrize(
    "held", ["hunter2-hunter2", {}, {"AWS_ACCESS_KEY_ID": "hunter2"}, dict.fromkeys([*VARIABLES, "PATH"], "hunter2")]
)
def test_a_block_that_holds_something_else_is_refused_and_not_repeated(held: object) -> None:
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY") as caught:
        _checked("store-keys", held)
    assert "hunter2" not in str(caught.value)

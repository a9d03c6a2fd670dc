"""Files of infra/ checked by the programs that read them, or by their schemas; missing programs skip a test."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.infra.test_compose import DOCKERFILES, INFRA, SERVICES
from tests.infra.test_manifests import MANIFESTS
from tests.infra.test_pools import _rendered

YAMLS = [path for folder in ("infra", "deployments") for path in sorted((ROOT / folder).rglob("*.yaml"))]
OLDEST_CLUSTER = 30
"""The oldest Kubernetes 1.x whose schema the manifests must fit."""


def _tool(name: str) -> str:
    """Return a program on the search path or beside this interpreter; skip the test without it."""
    program = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    return program or pytest.skip(f"no {name} is installed here")


@pytest.mark.process
@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing_in_an_image(path: Path) -> None:
    command = [_tool("hadolint"), "--no-color", "--config", str(INFRA / "hadolint.yaml"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.process
def test_hadolint_would_find_something(tmp_path: Path) -> None:
    """The configuration does not silence everything."""
    path = tmp_path / "Dockerfile"
    path.write_text(DOCKERFILES[0].read_text().replace("--no-install-recommends", ""))
    command = [_tool("hadolint"), "--no-color", "--config", str(INFRA / "hadolint.yaml"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode and "DL3015" in done.stdout


@pytest.fixture
def compose(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`docker compose ... config` on the compose file, with an environment file."""
    plugin = [shutil.which("docker") or "", "compose"]
    has_plugin = plugin[0] and not subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode
    program = plugin if has_plugin else [_tool("docker-compose")]
    version = subprocess.run([*program, "version", "--short"], capture_output=True, text=True, check=True).stdout
    if version.startswith("1."):
        pytest.skip("docker-compose 1 does not know the compose specification")

    def run(content: str, *more: str) -> subprocess.CompletedProcess[str]:
        filled = tmp_path / "env"
        filled.write_text(content)
        command = [*program, "--file", str(INFRA / "compose.yaml"), "--env-file", str(filled), *more, "config"]
        clean = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        return subprocess.run(command, env=clean, capture_output=True, text=True, check=False)

    return run


@pytest.mark.process
def test_compose_resolves_every_service_with_and_without_a_gpu(compose: Callable[..., Any]) -> None:
    lines = (INFRA / ".env.example").read_text().splitlines()
    filled = "\n".join(f"{line}filled" if line.endswith("=") else line for line in lines)
    done = compose(filled, "--profile", "gpu")
    assert done.stdout, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert set(services) == set(SERVICES)
    for service in services.values():
        assert service.get("build", {}).get("context", str(ROOT)) == str(ROOT)
    (gpu,) = services["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert gpu["capabilities"] == ["gpu"]
    without = yaml.safe_load(compose(filled).stdout)["services"]
    assert set(services) - set(without) == {"worker-gpu"}


@pytest.mark.process
def test_compose_refuses_the_empty_example_environment(compose: Callable[..., Any]) -> None:
    done = compose((INFRA / ".env.example").read_text())
    assert not done.stdout and "fill in infra/.env" in done.stderr


@pytest.mark.process
def test_the_compose_file_fits_the_compose_specification() -> None:
    command = [_tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(INFRA / "compose.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _versions() -> list[str]:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed here")
    newest = int(validate.latest_version().split(".")[1])
    assert newest >= OLDEST_CLUSTER
    return [f"1.{minor}" for minor in (OLDEST_CLUSTER, newest)]


@pytest.mark.parametrize(
    "manifest", MANIFESTS, ids=lambda manifest: f"{manifest['kind']}-{manifest['metadata']['name']}"
)
def test_a_manifest_fits_the_schema_of_kubernetes(manifest: dict[str, Any]) -> None:
    for version in _versions():
        import kubernetes_validate

        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_pools_jobs_fit_the_schema_of_kubernetes() -> None:
    """The jobs are rendered and completed as a worker does."""
    for values in ({}, {"gpus": 0, "node_selector": {"a": "b"}, "labels": {"run": "x"}}):
        job = _rendered("kubernetes", name="run", **values)["job_manifest"]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert "args" not in container  # then the worker gives the command
        container["args"] = ["prefect", "flow-run", "execute"]
        for version in _versions():
            import kubernetes_validate

            kubernetes_validate.validate(job, version, strict=True)


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_key_is_duplicated(path: Path) -> None:
    """YAML's reader silently takes the last of two."""

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            twice = {name for name in names if names.count(name) > 1}
            assert not twice, f"{path.name}:{node.start_mark.line + 1}: {twice}"
            return super().construct_mapping(node, deep)

    assert all(content is not None for content in yaml.load_all(path.read_text(), Strict))


@pytest.mark.parametrize("path", sorted((ROOT / "deployments/pools").glob("*.json")), ids=lambda path: path.stem)
def test_no_key_of_a_template_is_duplicated(path: Path) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), [name for name, _ in pairs]
        return dict(pairs)

    assert json.loads(path.read_text(), object_pairs_hook=unique)

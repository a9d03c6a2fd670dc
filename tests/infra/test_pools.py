"""The work pools' templates: placeholders are variables, defaults are valid, and rendered jobs can start."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from tests.conftest import ROOT

POOLS = ROOT / "deployments/pools"
KINDS = ("process", "docker", "kubernetes")


def _template(kind: str) -> dict[str, Any]:
    return json.loads((POOLS / f"{kind}.json").read_text())  # type: ignore[no-any-return]


def _rendered(kind: str, **values: Any) -> dict[str, Any]:
    """Render the job configuration as a worker does: values over defaults; placeholders without either are left out."""
    from prefect.utilities.templating import apply_values

    template = _template(kind)
    defaults = {
        name: field["default"] for name, field in template["variables"]["properties"].items() if "default" in field
    }
    return apply_values(template["job_configuration"], defaults | values)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
def test_placeholders_are_variables_and_variables_are_used_described_and_valid(kind: str) -> None:
    template = _template(kind)
    assert set(template) == {"job_configuration", "variables"}
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"])))
    variables = template["variables"]["properties"]
    assert used == set(variables)
    jsonschema.Draft202012Validator.check_schema(template["variables"])
    for name, variable in variables.items():
        assert variable["description"].endswith("."), name
        if "default" in variable:
            jsonschema.validate(variable["default"], variable)


@pytest.mark.parametrize("kind", KINDS)
def test_prefects_own_template_has_the_same_fields(kind: str) -> None:
    """The registry that Prefect ships is older than its workers: Docker's container_create_kwargs came later."""
    from prefect.server.api import collections

    registry = collections.__file__.replace("collections.py", "collections_data/views/aggregate-worker-metadata.json")
    with open(registry) as file:
        workers = {name: worker for collection in json.load(file).values() for name, worker in collection.items()}
    fields = set(workers[kind]["default_base_job_configuration"]["job_configuration"])
    assert set(_template(kind)["job_configuration"]) - fields <= {"container_create_kwargs"}


def test_the_process_worker_accepts_its_template() -> None:
    from prefect.workers.process import ProcessWorker

    made = ProcessWorker.job_configuration(**_rendered("process", env={"HF_HOME": "/models"}))
    assert made.env == {"HF_HOME": "/models"} and made.working_dir is None


def test_the_docker_client_accepts_gpus_and_shared_memory() -> None:
    types = pytest.importorskip("docker.types")
    container = _rendered("docker")["container_create_kwargs"]
    gpus, limits = container["device_requests"], [types.Ulimit(**limit) for limit in container["ulimits"]]
    made = types.HostConfig(
        version="1.47", device_requests=gpus, shm_size=container["shm_size"], init=container["init"], ulimits=limits
    )
    assert made["DeviceRequests"][0]["Capabilities"] == [["gpu"]] and made["DeviceRequests"][0]["Count"] == -1
    assert made["ShmSize"] == 16 * 2**30
    assert _rendered("docker", gpus=[])["container_create_kwargs"]["device_requests"] == []
    assert _rendered("docker")["privileged"] is False


def test_the_kubernetes_job_asks_for_a_gpu_shared_memory_and_no_rights() -> None:
    made = _rendered("kubernetes", node_selector={"nvidia.com/gpu.product": "NVIDIA-H200"}, command="x", name="run")
    pod = made["job_manifest"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "prefect-job"  # Prefect's worker looks for this name
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert volumes["dshm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert made["job_manifest"]["spec"]["backoffLimit"] == 0  # Prefect retries runs, not Kubernetes
    assert made["pod_watch_timeout_seconds"] >= 900
    assert "{{" not in json.dumps(made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_sends_a_heartbeat_every_30_seconds(kind: str) -> None:
    assert _rendered(kind)["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"


def test_every_pool_has_a_template_and_every_deployment_a_pool() -> None:
    pools = yaml.safe_load((POOLS / "pools.yaml").read_text())
    assert {pool["type"] for pool in pools.values()} <= set(KINDS)
    deployments = yaml.safe_load((ROOT / "deployments/prefect.yaml").read_text())["deployments"]
    assert {deployment["work_pool"]["name"] for deployment in deployments} == set(pools)
    assert not any(schedule["active"] for deployment in deployments for schedule in deployment.get("schedules", []))

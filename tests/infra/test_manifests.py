"""The Kubernetes manifests: complete, in one namespace, with least rights, pinned images and no secrets."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

FOLDER = ROOT / "infra/kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = [
    manifest for name in KUSTOMIZATION["resources"] for manifest in yaml.safe_load_all((FOLDER / name).read_text())
]
APIS = {
    "Namespace": "v1", "Service": "v1", "ServiceAccount": "v1", "PersistentVolumeClaim": "v1",
    "Deployment": "apps/v1", "StatefulSet": "apps/v1", "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
}  # fmt: skip
WORKLOADS = [manifest for manifest in MANIFESTS if manifest["kind"] in ("Deployment", "StatefulSet")]


def check_container(container: dict[str, Any]) -> None:
    """Check what Kubernetes' schema (`test_tools`) leaves open."""
    assert re.search(r":\S*\d+\.\d+", container["image"])
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]
    assert all(("value" in entry) != ("valueFrom" in entry) for entry in container.get("env", []))
    for probe in ("livenessProbe", "readinessProbe"):
        assert container.get(probe, {"periodSeconds": 1})["periodSeconds"]


def _named(kind: str) -> set[str]:
    return {manifest["metadata"]["name"] for manifest in MANIFESTS if manifest["kind"] == kind}


def test_every_file_is_in_the_kustomization_and_every_object_has_its_api_and_name() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*KUSTOMIZATION["resources"], "kustomization.yaml"}
    for manifest in MANIFESTS:
        assert manifest["apiVersion"] == APIS[manifest["kind"]]
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in MANIFESTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("manifest", WORKLOADS, ids=lambda manifest: manifest["metadata"]["name"])
def test_a_workload_is_complete_and_refers_to_existing_objects(manifest: dict[str, Any]) -> None:
    spec = manifest["spec"]
    assert "replicas" in spec and spec["template"]["spec"]["containers"]
    secured = spec["template"]["spec"]["securityContext"]
    assert secured["runAsNonRoot"] is True and secured["runAsUser"] >= 1
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    pod = spec["template"]["spec"]
    assert pod.get("serviceAccountName", "none") in _named("ServiceAccount") or not pod["automountServiceAccountToken"]
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    volumes |= {claim["metadata"]["name"]: {} for claim in spec.get("volumeClaimTemplates", [])}
    for container in pod["containers"]:
        check_container(container)
        assert {mount["name"] for mount in container.get("volumeMounts", [])} == set(volumes)
    for volume in volumes.values():
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        assert claim is None or claim in _named("PersistentVolumeClaim")


def test_services_reach_a_workload_and_workers_reach_the_server() -> None:
    labels = [manifest["spec"]["template"]["metadata"]["labels"] for manifest in WORKLOADS]
    for manifest in MANIFESTS:
        if manifest["kind"] == "Service":
            assert manifest["spec"]["selector"] in labels
    text = "\n".join(path.read_text() for path in FOLDER.glob("worker-*.yaml"))
    assert set(re.findall(r"http://([a-z]+):4200/api", text)) <= _named("Service")


def test_the_workers_account_may_only_start_jobs_in_its_namespace() -> None:
    (role,) = [manifest for manifest in MANIFESTS if manifest["kind"] == "Role"]
    granted = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert granted == {"jobs", "pods", "pods/log", "pods/status", "events"}
    assert not any("*" in rule["verbs"] for rule in role["rules"])
    assert not _named("ClusterRole")


def test_secrets_are_named_but_never_created() -> None:
    assert "Secret" not in {manifest["kind"] for manifest in MANIFESTS}
    text = "\n".join(path.read_text() for path in FOLDER.glob("*.yaml"))
    named = set(re.findall(r"secret(?:Key)?Ref: \{name: ([\w-]+)", text))
    guide = (ROOT / "docs/how-to/team.md").read_text()
    for name in named:
        assert f"create secret generic {name} " in guide


@pytest.mark.process
def test_kubectl_builds_all_in_one_namespace() -> None:
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl here")
    done = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=True, timeout=60)
    built = list(yaml.safe_load_all(done.stdout))
    assert len(built) == len(MANIFESTS)
    spaces = {manifest["metadata"].get("namespace") for manifest in built if manifest["kind"] != "Namespace"}
    assert spaces == {"rloop"}

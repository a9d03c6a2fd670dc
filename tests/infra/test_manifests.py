"""The Kubernetes manifests: whole, of one namespace, without rights or floating images, and without a secret."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import jsonschema
import pytest
import yaml

from tests.conftest import ROOT

FOLDER = ROOT / "infra/kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = [
    manifest for name in KUSTOMIZATION["resources"] for manifest in yaml.safe_load_all((FOLDER / name).read_text())
]
APIS = {
    "Namespace": "v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "PersistentVolumeClaim": "v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
}
_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
_QUANTITY = {"type": "string", "pattern": "^[0-9]+(m|Mi|Gi)?$"}
_RESOURCES = {"type": "object", "additionalProperties": _QUANTITY}
_CONTAINER = {
    "type": "object",
    "required": ["name", "image", "resources", "securityContext"],
    "additionalProperties": False,
    "properties": {
        "name": _NAME,
        "image": {"type": "string", "pattern": r":\S*\d+\.\d+"},
        "args": {"type": "array", "items": {"type": "string"}},
        "env": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {"name": {"pattern": "^[A-Z_]+$"}, "value": {"type": "string"}, "valueFrom": {}},
                "oneOf": [{"required": ["value"]}, {"required": ["valueFrom"]}],
            },
        },
        "envFrom": {"type": "array"},
        "ports": {"type": "array", "items": {"required": ["containerPort"]}},
        "livenessProbe": {"type": "object", "required": ["httpGet", "periodSeconds"]},
        "readinessProbe": {"type": "object", "required": ["periodSeconds"]},
        "securityContext": {
            "const": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        },
        "resources": {
            "type": "object",
            "required": ["requests", "limits"],
            "properties": {"requests": _RESOURCES, "limits": {**_RESOURCES, "required": ["memory"]}},
        },
        "volumeMounts": {"type": "array", "items": {"required": ["name", "mountPath"]}},
    },
}
WORKLOAD = {
    "type": "object",
    "required": ["replicas", "selector", "template"],
    "properties": {
        "template": {
            "required": ["metadata", "spec"],
            "properties": {
                "spec": {
                    "required": ["securityContext", "containers"],
                    "properties": {
                        "containers": {"type": "array", "items": _CONTAINER, "minItems": 1},
                        "securityContext": {
                            "required": ["runAsNonRoot", "runAsUser"],
                            "properties": {"runAsNonRoot": {"const": True}, "runAsUser": {"minimum": 1}},
                        },
                    },
                }
            },
        }
    },
}
WORKLOADS = [manifest for manifest in MANIFESTS if manifest["kind"] in ("Deployment", "StatefulSet")]


def _named(kind: str) -> set[str]:
    return {manifest["metadata"]["name"] for manifest in MANIFESTS if manifest["kind"] == kind}


def test_every_file_is_in_the_kustomization_and_every_object_has_its_api_and_name() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*KUSTOMIZATION["resources"], "kustomization.yaml"}
    for manifest in MANIFESTS:
        assert manifest["apiVersion"] == APIS[manifest["kind"]]
        jsonschema.validate(manifest["metadata"]["name"], _NAME)
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in MANIFESTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("manifest", WORKLOADS, ids=lambda manifest: manifest["metadata"]["name"])
def test_a_workload_is_whole_and_points_at_what_is_there(manifest: dict[str, Any]) -> None:
    spec = manifest["spec"]
    jsonschema.validate(spec, WORKLOAD)
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    pod = spec["template"]["spec"]
    assert pod.get("serviceAccountName", "none") in _named("ServiceAccount") or not pod["automountServiceAccountToken"]
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    volumes |= {claim["metadata"]["name"]: {} for claim in spec.get("volumeClaimTemplates", [])}
    for container in pod["containers"]:
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


def test_the_workers_account_may_start_jobs_in_its_namespace_and_nothing_else() -> None:
    (role,) = [manifest for manifest in MANIFESTS if manifest["kind"] == "Role"]
    granted = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert granted == {"jobs", "pods", "pods/log", "pods/status", "events"}
    assert not any("*" in rule["verbs"] for rule in role["rules"])
    assert not _named("ClusterRole")


def test_secrets_are_named_and_never_made_here() -> None:
    assert "Secret" not in {manifest["kind"] for manifest in MANIFESTS}
    text = "\n".join(path.read_text() for path in FOLDER.glob("*.yaml"))
    named = set(re.findall(r"secret(?:Key)?Ref: \{name: ([\w-]+)", text))
    guide = (ROOT / "docs/operating.md").read_text()
    for name in named:
        assert f"create secret generic {name} " in guide


def test_kubectl_builds_it_in_one_namespace() -> None:
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl here")
    done = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=True, timeout=60)
    built = list(yaml.safe_load_all(done.stdout))
    assert len(built) == len(MANIFESTS)
    spaces = {manifest["metadata"].get("namespace") for manifest in built if manifest["kind"] != "Namespace"}
    assert spaces == {"rloop"}

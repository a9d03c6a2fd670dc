"""The Kubernetes manifests: complete, in one namespace, with least rights, pinned images and no secrets.

The rules are those of Kubernetes' Pod Security Standards at the level "restricted", which the namespace enforces.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
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
    "RoleBinding": "rbac.authorization.k8s.io/v1", "NetworkPolicy": "networking.k8s.io/v1",
}  # fmt: skip
WORKLOADS = [manifest for manifest in MANIFESTS if manifest["kind"] in ("Deployment", "StatefulSet")]
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")


def pods() -> dict[str, dict[str, Any]]:
    """Every pod template of the project, by file: manifests, machines, KubeRay's groups, the pool's job."""
    files = [*(ROOT / "infra").rglob("*.yaml"), ROOT / "deployments/pools/kubernetes.json"]
    found = {}
    for path in files:
        for manifest in yaml.safe_load_all(path.read_text()):
            for place, template in _templates(manifest, path.stem):
                found[place] = template
    return found


def _templates(value: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
            yield place, value
        for name, part in value.items():
            yield from _templates(part, f"{place}.{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _templates(part, f"{place}.{number}")


def refused(pod: dict[str, Any]) -> list[str]:
    """Return what the level "restricted" forbids of a pod's spec, and what may be written of its root."""
    whole = pod.get("securityContext", {})
    wrong = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    wrong += [f"volume {volume['name']}" for volume in pod.get("volumes", []) if len({*volume} & VOLUMES) != 1]
    wrong += ["sysctls"] if whole.get("sysctls") else []
    for container in (one for kind in CONTAINERS for one in pod.get(kind, [])):
        own = {**whole, **container.get("securityContext", {})}
        drop, add = (own.get("capabilities", {}).get(which, []) for which in ("drop", "add"))
        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": drop == ["ALL"] and {*add} <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": own.get("runAsNonRoot") is True and own.get("runAsUser", 1) != 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
            "procMount": own.get("procMount", "Default") == "Default",
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        }
        wrong += [f"{container['name']}: {name}" for name, holds in checks.items() if not holds]
    return wrong


@pytest.mark.parametrize("place", pods())
def test_a_pod_may_do_as_little_as_pod_security_restricted_allows(place: str) -> None:
    pod = pods()[place]["spec"]
    assert refused(pod) == []
    assert pod.get("automountServiceAccountToken") is False or pod["serviceAccountName"] == "rloop-worker"
    for container in pod["containers"]:
        assert container["resources"]["limits"]["memory"]
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, "volume host"),
        ({"securityContext": {"runAsNonRoot": True, "runAsUser": 1}}, "server: seccompProfile"),
        ({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}, "server: runAsNonRoot"),
    ],
)
def test_the_rules_would_find_something(change: dict[str, Any], named: str) -> None:
    (server,) = [manifest for manifest in WORKLOADS if manifest["metadata"]["name"] == "prefect"]
    assert named in refused(server["spec"]["template"]["spec"] | change)


def test_the_rules_see_every_pod() -> None:
    files = {place.split(".")[0] for place in pods()}
    assert files == {"postgres", "server", "worker-cpu", "worker-gpu", "run", "rayjob", "kubernetes"}
    (namespace,) = [manifest for manifest in MANIFESTS if manifest["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}


def test_a_connection_needs_a_policy_and_the_password_of_the_database_is_not_all_that_guards_it() -> None:
    labels = {template["metadata"]["labels"]["app"] for template in pods().values()}
    policies = {one["metadata"]["name"]: one["spec"] for one in MANIFESTS if one["kind"] == "NetworkPolicy"}
    assert policies["nobody-to-any"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    text = json.dumps(policies)
    assert labels <= set(re.findall(r"[a-z-]+", text)), "every kind of pod is in a policy"
    (database,) = policies["server-to-postgres"]["ingress"]
    assert database["from"] == [{"podSelector": {"matchLabels": {"app": "prefect"}}}]
    (server,) = policies["workers-and-runs-to-server"]["ingress"]
    (workers,) = server["from"][0]["podSelector"]["matchExpressions"]
    assert {*workers["values"]} == labels - {"postgres", "prefect", "rloop-machines"} and server["ports"] == [
        {"port": 4200}
    ]
    (out,) = policies["all-but-metadata"]["egress"]
    assert {"169.254.169.254/32"} <= {each for to in out["to"] for each in to.get("ipBlock", {}).get("except", [])}


def check_container(container: dict[str, Any]) -> None:
    """Check what Kubernetes' schema (`test_tools`) leaves open."""
    assert re.search(r":\S*\d+\.\d+", container["image"])
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

"""The chart, rendered by Helm's own code and held against Kubernetes' schemas.

``helm_python`` is Helm 4 as a library, and ``kubernetes_validate`` has the schemas of each version.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import settings

if find_spec("helm_python") is None:
    pytest.skip("helm-python-sdk is not installed", allow_module_level=True)
kubernetes_validate = pytest.importorskip("kubernetes_validate")

CHART = Path(__file__).parents[2] / "deploy" / "chart"
VERSION = "1.29"
INFO = 1
FOREIGN = {"ServiceMonitor", "PrometheusRule", "RayCluster"}
"""Kinds of Prometheus' and Ray's operators, whose schemas are not Kubernetes'."""

EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "gateway": {
        "ingress": {"enabled": True, "host": "sluice.example.com", "tlsSecret": "tls"},
        "autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 4, "cpuPercent": 70},
        "nodeSelector": {"pool": "cpu"},
    },
    "engine": {
        "autoscaling": {
            "enabled": True,
            "minReplicas": 1,
            "maxReplicas": 4,
            "metric": "queue",
            "targetSeconds": "1",
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    },
    "networkPolicy": {"apiFrom": [{"podSelector": {}}]},
    "monitoring": {
        "serviceMonitor": True,
        "rules": True,
        "dashboard": True,
        "labels": {"release": "prometheus"},
    },
}
BARE: dict[str, Any] = {
    "gateway": {"persistence": {"enabled": False}, "disruptionBudget": {"enabled": False}},
    "engine": {"cache": {"enabled": False}, "disruptionBudget": {"enabled": False}},
    "networkPolicy": {"enabled": False},
}

RAY: dict[str, Any] = {"ray": {"enabled": True, "workers": {"nodeSelector": {"pool": "gpu"}}}}

values = pytest.mark.parametrize(
    "values", [{}, EVERYTHING, BARE, RAY], ids=["default", "all", "bare", "ray"]
)


HELM = """
import json, sys, helm_python
given = sys.stdin.read()
if given:
    with helm_python.Chart.load(sys.argv[1]) as chart:
        print(json.dumps(chart.render(values=json.loads(given), name="one")))
else:
    print(json.dumps(helm_python.lint(sys.argv[1])))
"""


@cache
def helm(values: str) -> Any:
    """The chart rendered with these values; without any, what the linter finds.

    In a process of its own: Helm's code is Go, whose threads do not live on in a fork.
    """
    command = [sys.executable, "-c", HELM, str(CHART)]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return json.loads(done.stdout)


def rendered(given: dict[str, Any]) -> list[dict[str, Any]]:
    pages: dict[str, str] = helm(json.dumps(given))
    return [one for text in pages.values() for one in yaml.safe_load_all(text) if one]


def pods(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in documents:
        if "template" in one.get("spec", {}):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
        if one["kind"] == "RayCluster":
            for group in (one["spec"]["headGroupSpec"], *one["spec"]["workerGroupSpecs"]):
                yield group.get("groupName", "head"), group["template"]["spec"]


@values
def test_kubernetes_takes_all_of_it(values: dict[str, Any]) -> None:
    documents = rendered(values)
    for one in documents:
        if one["kind"] not in FOREIGN:
            kubernetes_validate.validate(one, VERSION, strict=True)
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(set(names)) == len(names)


def test_each_part_is_there() -> None:
    kinds = {(one["kind"], one["metadata"]["name"]) for one in rendered(EVERYTHING)}
    assert kinds >= {
        ("StatefulSet", "one-gateway"),
        ("StatefulSet", "one-engine"),
        ("Job", "one-migrate"),
        ("PodDisruptionBudget", "one-gateway"),
        ("PodDisruptionBudget", "one-engine"),
        ("HorizontalPodAutoscaler", "one-engine"),
        ("NetworkPolicy", "one-gateway"),
        ("NetworkPolicy", "one-engine"),
        ("ServiceMonitor", "one"),
        ("PrometheusRule", "one"),
        ("Ingress", "one"),
    }
    assert {kind for kind, _ in ((one["kind"], 0) for one in rendered(BARE))} == {
        "ConfigMap",
        "Job",
        "Service",
        "StatefulSet",
    }


@values
def test_pods_have_no_rights_and_limits(values: dict[str, Any]) -> None:
    for name, pod in pods(rendered(values)):
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in [*pod["initContainers"], *pod["containers"]]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert not container["image"].endswith(":latest")
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            claims = {"data", "cache"}
            assert mounted <= {volume["name"] for volume in pod["volumes"]} | claims


@values
def test_selectors_select_the_pods(values: dict[str, Any]) -> None:
    documents = rendered(values)
    labels = {
        name: one["spec"]["template"]["metadata"]["labels"]
        for one in documents
        if one["kind"] == "StatefulSet"
        for name in [one["metadata"]["name"]]
    }
    assert labels["one-gateway"] != labels.get("one-engine")
    for one in documents:
        if one["kind"] == "Service":
            wanted = one["spec"]["selector"].items()
            assert len([found for found in labels.values() if wanted <= found.items()]) == 1
        if one["kind"] == "HorizontalPodAutoscaler":
            assert one["spec"]["scaleTargetRef"]["name"] in labels


def test_ray_places_the_engines_in_place_of_the_chart() -> None:
    documents = rendered(RAY)
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    assert not {name for _, name in found if name.startswith("one-engine")}
    cluster, policy = found["RayCluster", "one-ray"], found["NetworkPolicy", "one-ray"]
    by_name = dict(pods([cluster]))
    for name, pod in by_name.items():
        # KubeRay adds a command; the rest is a pod as Kubernetes takes it.
        one = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}
        kubernetes_validate.validate(one, VERSION, strict=True)
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert by_name["engines"]["nodeSelector"] == {"pool": "gpu"}
    (head,) = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    after = head["lifecycle"]["postStart"]["exec"]["command"][2]
    assert "sluice fleet up --ray --config /etc/sluice/sluice.toml" in after
    (worker,) = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    assert "lifecycle" not in worker
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        assert selected <= group["template"]["metadata"]["labels"].items()


def test_variables_are_settings_and_ports_are_served() -> None:
    known = {setting.env for setting in settings()}
    for _, pod in pods(rendered(EVERYTHING)):
        (container,) = pod["containers"]
        variables = {one["name"]: one.get("value") for one in container["env"]}
        assert set(variables) <= known
        ports = {port["name"]: str(port["containerPort"]) for port in container.get("ports", ())}
        given = {name: value for name, value in variables.items() if name.endswith("_PORT")}
        assert set(ports.values()) == set(given.values())


def test_probes_wait_for_the_model() -> None:
    by_name = dict(pods(rendered({"engine": {"startupSeconds": 600}})))
    (engine,) = by_name["one-engine"]["containers"]
    probe = engine["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 600
    (gateway,) = by_name["one-gateway"]["containers"]
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_a_wrong_value_is_refused_by_name() -> None:
    wrongs: list[dict[str, Any]] = [
        {"gatway": {}},
        {"engine": {"replicas": 0}},
        {"image": {"pullPolicy": "Maybe"}},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"HelmValuesError[\s\S]*(gatway|replicas|pullPolicy)"):
            rendered(wrong)


def test_helms_linter_finds_nothing() -> None:
    found = helm("")
    assert found["errors"] == []
    assert [one for one in found["messages"] if one["severity"] > INFO] == []


def test_the_versions_are_one() -> None:
    project = (CHART.parents[1] / "pyproject.toml").read_text()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'version = "{chart["appVersion"]}"' in project

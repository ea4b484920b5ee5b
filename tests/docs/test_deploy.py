"""The container file and the Kubernetes example are whole, and name only what exists."""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from support.documents import ROOT
from tinkex.cli.commands.serve import read_engines, serve
from tinkex.server.engines.fleet import Span

CONTAINERFILE = ROOT / "deploy" / "Containerfile"
KUBERNETES = ROOT / "deploy" / "kubernetes.yaml"
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}


def _instructions() -> list[tuple[str, str]]:
    lines = CONTAINERFILE.read_text().replace("\\\n", " ").splitlines()
    words = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in words]


def _manifests() -> dict[str, Any]:
    found = list(yaml.safe_load_all(KUBERNETES.read_text()))
    assert all({"apiVersion", "kind", "metadata"} <= set(each) for each in found)
    return {each["kind"]: each for each in found}


def _check_serve(words: list[str]) -> None:
    known = {name for option in serve.params for name in (*option.opts, *option.secondary_opts)}
    assert words[0] == "serve"
    assert {word for word in words if word.startswith("--")} <= known


def test_the_container_file_copies_and_runs_what_there_is() -> None:
    found = _instructions()
    assert {name for name, _ in found} == INSTRUCTIONS
    assert found[0][0] == "FROM"
    for name, rest in found:
        if name == "COPY":
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
    extras = re.search(r"\.\[(.*)\]", CONTAINERFILE.read_text())
    assert extras is not None
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras[1].split(","))
    _check_serve(yaml.safe_load(dict(found)["CMD"]))
    assert yaml.safe_load(dict(found)["ENTRYPOINT"]) == ["tinkex"]
    users = [name for name, _ in found]
    assert users.index("USER") < users.index("ENTRYPOINT"), "a server does not run as root"


def test_the_manifests_fit_together() -> None:
    found = _manifests()
    assert set(found) == {"RayCluster", "PersistentVolumeClaim", "Deployment", "Service"}
    pod = found["Deployment"]["spec"]["template"]
    labels, claims = pod["metadata"]["labels"], pod["spec"]["volumes"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    assert claims[0]["persistentVolumeClaim"]["claimName"] == claim
    [container] = pod["spec"]["containers"]
    names = {port["name"] for port in container["ports"]}
    assert found["Service"]["spec"]["ports"][0]["targetPort"] in names
    assert container["readinessProbe"]["httpGet"]["port"] in names
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in claims}


def test_the_server_joins_the_cluster_and_only_one_owns_the_home() -> None:
    found = _manifests()
    deployment = found["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")
    [container] = deployment["template"]["spec"]["containers"]
    joining, _, serving = container["args"][0].partition("&&")
    head = f"{found['RayCluster']['metadata']['name']}-head-svc:6379"
    assert f"--address={head}" in shlex.split(joining)
    words = shlex.split(serving)
    assert words[:2] == ["exec", "tinkex"]
    _check_serve(words[2:])
    engines = read_engines(words[words.index("--engines") + 1])
    groups = found["RayCluster"]["spec"]["workerGroupSpecs"]
    assert isinstance(engines, Span)
    assert engines.most <= sum(group["maxReplicas"] for group in groups)


def test_ray_groups_say_how_far_they_grow() -> None:
    ray = _manifests()["RayCluster"]["spec"]
    assert ray["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in ray["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert group["template"]["spec"]["containers"]

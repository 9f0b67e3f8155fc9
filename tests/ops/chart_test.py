#!/usr/bin/env python3
"""The Helm chart makes the same objects as the manifests of kustomize, which match the API's schemas. It passes Helm's
own lint, and refuses wrong values by name.

usage: chart_test.py OUT

Packs the chart into the folder OUT. Needs the packages of chart-requirements.txt; `./run chart` installs them.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import helm_python as helm
from manifests import KUBERNETES, MANIFESTS, VARIANTS, Variant, load, yaml
from support import ROOT

FOLDER = tempfile.TemporaryDirectory()
SOURCE = ROOT / "deploy" / "helm" / "cairn"
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yaml"
DASHBOARDS = ROOT / "docker" / "grafana" / "dashboards"
# As it is packed: a template reads files of its chart only.
CHART = shutil.copytree(SOURCE, pathlib.Path(FOLDER.name) / "cairn")
shutil.copytree(DASHBOARDS, CHART / "files" / "dashboards")
shutil.copy(ALERTS, CHART / "files")
LOADED = helm.Chart.load(CHART)
VALUES = {"base": {}, "overlays/gpu": load(CHART / "values-gpu.yaml")}
MONITORING = {"monitoring": {"serviceMonitor": True, "rules": True, "dashboards": True}}
# Labels that say which chart made an object. The manifests have another one.
CHART_LABELS = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by",
                "app.kubernetes.io/part-of", "helm.sh/chart"}
WRONG_VALUES = [
    ({"memory": "3 gigabytes"}, "memory"),
    ({"gpu": {"enabled": "yes"}}, "enabled"),
    ({"monitor": {}}, "monitor"),
    ({"env": {"cairn-threads": 1}}, "cairn-threads"),
    ({"dataPath": "cairn"}, "dataPath"),
]
failures = []


def check(right, what):
    if not right:
        failures.append(what)


def rendered(values, name="cairn", namespace="cairn"):
    """The objects of the chart by kind; of a kind with several, a list."""
    texts = LOADED.render(values, name=name, namespace=namespace)
    objects = {}
    for path, text in texts.items():
        if path.endswith(".yaml"):
            for one in filter(None, yaml.safe_load_all(text)):
                objects.setdefault(one["kind"], []).append(one)
    return {kind: ones[0] if len(ones) == 1 else ones for kind, ones in objects.items()}


def plain(value):
    """Without what only a chart has."""
    if isinstance(value, dict):
        rest = {key: plain(one) for key, one in value.items() if key not in CHART_LABELS
                and key not in ("checksum/config", "imagePullPolicy", "namespace")}
        return {key: one for key, one in rest.items() if one != {} or value[key] == {}}
    return [plain(one) for one in value] if isinstance(value, list) else value


def differences(chart, manifest, path=""):
    """Where two values differ. Named things of a list may come in any order."""
    if isinstance(chart, dict) and isinstance(manifest, dict):
        for key in sorted(chart.keys() | manifest.keys()):
            if key not in chart or key not in manifest:
                yield f"{path}.{key}: only in the {'chart' if key in chart else 'manifest'}"
            else:
                yield from differences(chart[key], manifest[key], f"{path}.{key}")
    elif isinstance(chart, list) and isinstance(manifest, list) and all(
            isinstance(one, dict) and "name" in one for one in chart + manifest):
        yield from differences(*({one["name"]: one for one in ones} for ones in (chart, manifest)), path)
    elif chart != manifest:
        yield f"{path}: {chart!r} in the chart, {manifest!r} in the manifest"


def equals_the_manifests(name):
    variant, objects = Variant(MANIFESTS / name), rendered(VALUES[name])
    files = {key: json.loads(text) for key, text in objects.pop("ConfigMap")["data"].items()}
    check(files == {"cairn.json": variant.settings()}, f"{name}: cairn.json is {files}")
    expected = dict(variant.objects)
    del expected["Namespace"]  # Helm makes it: --create-namespace
    pod = expected["DaemonSet"]["spec"]["template"]["spec"]
    for container in pod["containers"] + pod["initContainers"]:
        container["image"] += ":" + variant.tags[container["image"]]
    for kind in sorted(expected.keys() | objects.keys()):
        check(kind in objects and kind in expected, f"{name}: {kind} is not in both")
        for what in differences(plain(objects.get(kind)), plain(expected.get(kind)), kind):
            check(False, f"{name}: {what}")


def monitoring_is_complete():
    objects = rendered(MONITORING)
    monitor = load(MANIFESTS / "components" / "monitoring" / "servicemonitor.yaml")
    for what in differences(plain(objects["ServiceMonitor"]), plain(monitor), "ServiceMonitor"):
        check(False, what)
    check(objects["PrometheusRule"]["spec"] == load(ALERTS), "PrometheusRule: other alerts")
    dashboards = {}
    for one in objects["ConfigMap"]:
        if one["metadata"]["labels"].get("grafana_dashboard") == "1":
            dashboards.update({name: json.loads(text) for name, text in one["data"].items()})
    expected = {path.name: json.loads(path.read_text()) for path in DASHBOARDS.glob("*.json")}
    check(dashboards == expected, f"the dashboards are {sorted(dashboards)}, not {sorted(expected)}")


def names_follow_the_release():
    objects = rendered({"allowedHosts": ["kv.example"], "env": {"CAIRN_UNIX_USERS": "1000"}}, "blue", "serving")
    check(objects["Service"]["metadata"]["name"] == "blue-cairn", "the Service is not named after the release")
    container = objects["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]
    environment = {one["name"]: one["value"] for one in container["env"]}
    hosts = environment["CAIRN_ALLOWED_HOSTS"].split(",")
    check(hosts == ["blue-cairn", "blue-cairn.serving", "blue-cairn.serving.svc",
                    "blue-cairn.serving.svc.cluster.local", "kv.example"], f"the hosts are {hosts}")
    check(environment["CAIRN_UNIX_USERS"] == "1000", "a variable is lost")


def a_change_of_the_configuration_restarts():
    def checksum(values):
        return rendered(values)["DaemonSet"]["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
    check(checksum({}) != checksum({"config": {"threads": 3}}), "a change of the configuration restarts nothing")


def wrong_values_are_refused():
    for values, name in WRONG_VALUES:
        try:
            rendered(values)
            check(False, f"{values} is accepted")
        except helm.HelmError as error:
            print(f"{values}: {' '.join(str(error).split())}")
            check(name in str(error), f"{values}: {error} does not name {name}")


def the_source_names_the_packed_chart():
    with helm.Chart.load(SOURCE) as chart:
        for part in ["rules", "dashboards"]:
            try:
                chart.render({"monitoring": {part: True}}, name="cairn", namespace="cairn")
                check(False, f"monitoring.{part} is rendered without its files")
            except helm.HelmError as error:
                check("./run chart" in str(error), f"monitoring.{part}: {error}")


def passes_the_lint():
    for name, values in [*VALUES.items(), ("monitoring", MONITORING)]:
        report = helm.lint(CHART, values, strict=True, kube_version=f"v{KUBERNETES}.0")
        # Severity 1: recommendations.
        for message in report["messages"]:
            check(message["severity"] < 2, f"{name}: {message}")


def both_match_the_schemas():
    tool = pathlib.Path(sys.executable).parent / "kubernetes-validate"
    for name, values in VALUES.items():
        for objects in (rendered(values), Variant(MANIFESTS / name).objects):
            path = pathlib.Path(FOLDER.name) / "all.yaml"
            path.write_text(yaml.safe_dump_all(objects.values()))
            done = subprocess.run([str(tool), "--kubernetes-version", KUBERNETES, "--strict", str(path)],
                                  capture_output=True, text=True)
            check(done.returncode == 0, f"{name}: {done.stdout}{done.stderr}")


def main():
    for name in VARIANTS:
        equals_the_manifests(name)
    for step in [monitoring_is_complete, names_follow_the_release, a_change_of_the_configuration_restarts,
                 wrong_values_are_refused, the_source_names_the_packed_chart, passes_the_lint, both_match_the_schemas]:
        step()
    if failures:
        sys.exit("\n".join(failures))
    print(helm.package(CHART, destination=sys.argv[1]))


main()

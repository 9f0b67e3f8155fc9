"""The manifests under deploy/kubernetes."""

import json
import sys

from support import ROOT, skip

# Debian's package needs Debian's Python, which may not be the first one in PATH.
sys.path.append("/usr/lib/python3/dist-packages")
try:
    import yaml
except ImportError:
    skip("python3-yaml is not installed")

MANIFESTS = ROOT / "deploy" / "kubernetes"
VARIANTS = ["base", "overlays/gpu"]
KUBERNETES = "1.31"  # the version of the schemas


def load(path):
    return yaml.safe_load(path.read_text())


def merged(base, patch):
    """A strategic merge, limited to what these patches need: lists of named things are merged by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{key: merged(base[key], value) if key in base else value for key, value in patch.items()}}
    named = isinstance(patch, list) and all(isinstance(item, dict) and "name" in item for item in patch + base)
    if not named:
        return patch
    result = {item["name"]: item for item in base}
    for item in patch:
        result[item["name"]] = merged(result.get(item["name"], {}), item)
    return list(result.values())


class Variant:
    """What `kubectl kustomize` makes of a folder, by kind, with its images and its cairn.json."""

    def __init__(self, folder):
        self.name = str(folder.relative_to(MANIFESTS))
        plan = load(folder / "kustomization.yaml")
        self.objects, self.files, self.tags = {}, {}, {}
        for name in plan["resources"]:
            if (folder / name).is_dir():
                below = Variant((folder / name).resolve())
                self.objects.update(below.objects)
                self.files.update(below.files)
                self.tags.update(below.tags)
            else:
                self._add(load(folder / name))
        for generator in plan.get("configMapGenerator", []):
            self.files[generator["name"]] = {name: folder / name for name in generator["files"]}
        for patch in plan.get("patches", []):
            patch = load(folder / patch["path"])
            self._add(merged(self.objects[patch["kind"]], patch))
        self.tags.update({image["name"]: image["newTag"] for image in plan.get("images", [])})
        listed = {folder / name for name in plan["resources"]} | {folder / "kustomization.yaml"}
        listed |= {folder / patch["path"] for patch in plan.get("patches", [])}
        self.unlisted = [path for path in folder.glob("*.yaml") if path not in listed]

    def _add(self, manifest):
        self.objects[manifest["kind"]] = manifest

    def pod(self):
        return self.objects["DaemonSet"]["spec"]["template"]["spec"]

    def server(self):
        return next(container for container in self.pod()["containers"] if container["name"] == "cairn")

    def environment(self):
        return {variable["name"]: variable["value"] for variable in self.server()["env"]}

    def settings(self):
        return json.loads(self.files["cairn"]["cairn.json"].read_text())

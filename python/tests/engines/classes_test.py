"""Cairn below the engines' own classes, on the CPU. The environment's Python runs the parts."""

from __future__ import annotations

import json
import os
import subprocess
import unittest

from rig import HERE, python


class OwnClasses(unittest.TestCase):
    def run_inside(self, script: str) -> str:
        path = os.environ.get("PYTHONPATH", str(HERE.parents[1] / "src"))
        environment = {**os.environ, "PYTHONPATH": f"{path}:{HERE.parent}", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [python(), "-B", str(HERE / script)], env=environment, capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-8000:])
        return done.stdout

    def test_vllm_tiering(self) -> None:
        self.run_inside("vllm_tier.py")

    def test_vllms_managers_keep_what_a_load_brings(self) -> None:
        self.run_inside("group_managers.py")

    def test_sglang_storage(self) -> None:
        self.run_inside("sglang_storage.py")

    def test_lmcache_adapter(self) -> None:
        self.run_inside("lmcache_adapter.py")

    def test_the_compose_file_with_vllm(self) -> None:
        self.run_inside("compose.py")

    def test_the_engines_own_classes_read_the_servers_events(self) -> None:
        self.run_inside("kv_events.py")

    def test_torch_pools(self) -> None:
        self.run_inside("torch_pool.py")

    def test_the_recorded_interfaces_are_those_of_the_engines(self) -> None:
        recorded = json.loads((HERE.parent / "interfaces.json").read_text())
        self.assertEqual(json.loads(self.run_inside("record.py")), recorded)

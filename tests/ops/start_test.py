#!/usr/bin/env python3
"""After a start everything is as it was before: changes made at run time, blocks on a full disk, and folders that
must be the same ones.

usage: start_test.py CAIRN_SERVER [TEST...]
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

from support import Folder, Process, Server, eventually

UNSHARED = "CAIRN_UNSHARED"  # set if mounts made here are private to this process
SHAPE = {"num_layers": 2, "outer_dim": 2, "page_size": 4, "inner_dim": 8, "dtype_width_bytes": 2}
BLOCK_BYTES = 256
PROGRAM = None
WRONG_SETTING, MAY_PASS = 2, 1  # exit codes


def cache_of(pinned=16, disk=None, **more):
    sizes = {"pinned": pinned, "disk": disk}
    return {"layout": SHAPE, "tiers": {t: {"num_blocks": n} for t, n in sizes.items() if n}, **more}


def block_of(number):
    return number.to_bytes(4, "little") * (BLOCK_BYTES // 4)


# The file that 0.2 wrote for a cache made with cache_of(16, 32) and this order.
REMEMBERED_WITH_LRFU = {
    "cache": {"default_lease_ms": 30000, "eviction": "lrfu", "offload": "on_evict",
              "layout": {**SHAPE, "alignment": 4096},
              "tiers": {"disk": {"layout": "fully_contiguous", "num_blocks": 32, "path": "kept"},
                        "pinned": {"device_id": 0, "layout": "fully_contiguous", "num_blocks": 16,
                                   "numa_aware": False}}},
    "checksum": "381298d009c3ac86", "configured": None}


class StartTest(unittest.TestCase):
    def setUp(self):
        self.folder = Folder()
        self.root = pathlib.Path(self.folder.__enter__())
        self.addCleanup(self.folder.__exit__, None, None, None)
        self.running = []
        self.addCleanup(lambda: [server.stop(signal.SIGKILL) for server in self.running])
        self.config = {"caches": []}

    def command(self, *flags):
        (self.root / "config.json").write_text(json.dumps(self.config))
        return ["--config", self.root / "config.json", "--runtime", "host", *flags]

    def start(self, *flags, folder=None, env=None):
        server = Server(PROGRAM, folder or self.root, *self.command(*flags), env=env)
        self.running.append(server)
        return server

    def run_to_end(self, *flags, env=None, listen="127.0.0.1:0", data="data"):
        command = [PROGRAM, "--listen", listen, "--data-dir", self.root / data, *self.command(*flags)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)

    def call(self, server, method, path, body=None, expect=200):
        status, answer = server.call(method, path, body)
        self.assertEqual(status, expect, answer)
        return answer

    def put(self, server, numbers, name="kept", tier="disk"):
        for number in numbers:
            self.call(server, "PUT", f"/v1/caches/{name}/keys/{number:04x}?tier={tier}", block_of(number), 201)

    def there(self, server, numbers, name="kept"):
        """Returns which of the blocks exist, after checking their bytes."""
        found = []
        for number in numbers:
            status, data = server.call("GET", f"/v1/caches/{name}/keys/{number:04x}")
            if status == 200:
                self.assertEqual(data, block_of(number))
                found.append(number)
        return found

    def settings(self, server, name):
        """The settings that a PATCH can change."""
        body = self.call(server, "GET", f"/v1/caches/{name}")
        sizes = {tier: of["num_blocks"] for tier, of in body["tiers"].items()}
        return {**{field: body.get(field) for field in
                   ("offload", "eviction", "default_lease_ms", "pressure", "quota")}, "sizes": sizes}

    def ready(self, server):
        return server.call("GET", "/readyz")


class ServerElsewhere(Server):
    """A server whose log is outside its data directory."""

    def __init__(self, folder, data, *flags):
        self.folder = folder
        Process.__init__(self, [PROGRAM, "--listen", "127.0.0.1:0", "--data-dir", data, *flags], folder / "server.log")
        self.address = eventually(self._listening, "the server to listen").group(1)


CHANGE = {"offload": "on_commit", "eviction": "lru", "default_lease_ms": 12345,
          "pressure": {"pinned": {"elevated": 0.5, "warning": 0.6, "critical": 0.7}},
          "quota": {"max_leased_blocks": 9}}


class Changes(StartTest):
    def change_and_start_again(self, disk):
        sizes = {"pinned": {"num_blocks": 12}, **({"disk": {"num_blocks": 64}} if disk else {})}
        server = self.start()
        if not self.config["caches"]:
            self.call(server, "PUT", "/v1/caches/kept", cache_of(16, disk), 201)
        self.call(server, "PATCH", "/v1/caches/kept", {**CHANGE, "tiers": sizes})
        changed = self.settings(server, "kept")
        self.assertEqual(server.stop(), 0)
        server = self.start()
        self.assertEqual(self.settings(server, "kept"), changed)
        self.assertEqual(changed["sizes"], {"pinned": 12, **({"disk": 64} if disk else {})})
        self.assertEqual(changed["default_lease_ms"], 12345)
        return server

    def test_changes_of_a_configured_cache_survive_a_restart(self):
        self.config = {"caches": [{"name": "kept", **cache_of(16, 32)}]}
        server = self.change_and_start_again(32)
        self.assertIn("not as the configuration says", server.text())
        self.assertIn("tiers.disk.num_blocks is 64, not 32", server.text())

    def test_changes_without_a_disk_tier_survive_a_restart(self):
        self.config = {"caches": [{"name": "kept", **cache_of(16)}]}
        self.change_and_start_again(None)

    def test_changes_of_a_clients_cache_survive_a_restart(self):
        self.change_and_start_again(32)

    def test_only_edited_settings_replace_changes(self):
        self.config = {"caches": [{"name": "kept", **cache_of(16, 32)}]}
        self.change_and_start_again(32).stop()
        self.config["caches"][0]["tiers"]["disk"]["num_blocks"] = 48
        self.config["caches"][0]["default_lease_ms"] = 777
        server = self.start()
        for _ in range(2):  # and also at the start after that
            now = self.settings(server, "kept")
            self.assertEqual(now["sizes"], {"pinned": 12, "disk": 48})
            self.assertEqual((now["default_lease_ms"], now["eviction"]), (777, "lru"))
            self.assertEqual(now["quota"], {"max_leased_blocks": 9})
            text = server.text()
            server.stop()
            server = self.start()
        self.assertNotIn("replaces what a cache was changed to", text)

    def test_replaced_changes_are_logged(self):
        self.config = {"caches": [{"name": "kept", **cache_of(16, 32)}]}
        self.change_and_start_again(32).stop()
        self.config["caches"][0]["offload"] = "never"
        server = self.start()
        self.assertIn('offload is "never", not "on_commit"', server.text().replace('\\"', '"'))
        self.assertEqual(self.settings(server, "kept")["offload"], "never")

    def test_refused_changes_do_not_survive(self):
        server = self.start()
        self.call(server, "PUT", "/v1/caches/kept", cache_of(16, 32), 201)
        before = self.settings(server, "kept")
        self.call(server, "PATCH", "/v1/caches/kept", {"eviction": "lru", "tiers": {"pinned": {"num_blocks": 0}}}, 422)
        server.stop(signal.SIGKILL)
        self.assertEqual(self.settings(self.start(), "kept"), before)

    def test_changes_of_an_unconfigured_cache_stay_if_it_has_a_disk_tier(self):
        self.config = {"caches": [{"name": "kept", **cache_of(16, 32)}, {"name": "gone", **cache_of(16)}]}
        server = self.start()
        self.call(server, "PATCH", "/v1/caches/kept", {"default_lease_ms": 5})
        self.call(server, "PATCH", "/v1/caches/gone", {"default_lease_ms": 5})
        server.stop()
        self.config = {"caches": []}
        server = self.start()
        self.assertEqual(self.settings(server, "kept")["default_lease_ms"], 5)
        self.call(server, "GET", "/v1/caches/gone", expect=404)
        server.stop()
        self.config = {"caches": [{"name": "gone", **cache_of(16)}]}
        self.assertEqual(self.settings(self.start(), "gone")["default_lease_ms"], 30000)

    def test_changes_stored_without_the_configurations_settings_apply(self):
        self.config = {"caches": [{"name": "kept", **cache_of(16, 32)}]}
        self.change_and_start_again(32).stop(signal.SIGKILL)
        # 0.2 wrote such a file. This version sees it as damaged, and uses the slot file's label instead.
        (self.root / "data/caches/kept.json").write_text("{}")
        self.assertEqual(self.settings(self.start(), "kept")["sizes"], {"pinned": 12, "disk": 64})

    def test_a_removed_eviction_order_becomes_the_default(self):
        server = self.start()
        self.call(server, "PUT", "/v1/caches/kept", cache_of(16, 32), 201)
        self.put(server, range(4))
        server.stop()
        (self.root / "data/caches/kept.json").write_text(json.dumps(REMEMBERED_WITH_LRFU))
        server = self.start()
        self.assertEqual(self.settings(server, "kept")["eviction"], "class_hazard")
        self.assertEqual(self.there(server, range(4)), list(range(4)))
        self.assertIn("remembered with eviction lrfu", server.text())
        server.stop()
        self.assertNotIn("remembered with eviction lrfu", self.start().text())
        self.config = {"caches": [{"name": "kept", **cache_of(16, 32, eviction="lrfu")}]}
        refused = self.run_to_end()
        self.assertEqual(refused.returncode, WRONG_SETTING)
        self.assertIn("eviction is 'lrfu'; it takes one of lru, class_hazard", refused.stderr)


class Sizes(StartTest):
    def setUp(self):
        super().setUp()
        self.config = {"caches": [{"name": "kept", **cache_of(4, 24)}]}

    def start_with(self, blocks):
        self.config["caches"][0]["tiers"]["disk"]["num_blocks"] = blocks
        server = self.start()
        self.assertEqual(self.settings(server, "kept")["sizes"]["disk"], blocks)
        return server

    def test_a_smaller_configured_size_keeps_the_blocks_to_be_evicted_last(self):
        server = self.start()
        self.put(server, range(20))
        self.assertEqual(self.there(server, range(3)), [0, 1, 2])  # used again from the start
        server.stop()
        server = self.start_with(8)
        self.assertEqual(self.there(server, range(20)), [0, 1, 2, 15, 16, 17, 18, 19])
        self.put(server, range(30, 33))  # it stores blocks, and they stay
        server.stop(signal.SIGKILL)
        server = self.start()
        self.assertEqual(len(self.there(server, [*range(20), *range(30, 33)])), 8)
        self.assertEqual(self.there(server, range(30, 33)), [30, 31, 32])

    def test_a_larger_configured_size_keeps_all_blocks_and_stores_more(self):
        server = self.start()
        self.put(server, range(24))
        server.stop()
        server = self.start_with(48)
        self.put(server, range(24, 48))
        self.assertEqual(self.there(server, range(48)), list(range(48)))

    def test_a_client_that_makes_a_smaller_cache_keeps_the_blocks_that_fit(self):
        server = self.start()
        self.put(server, range(20))
        server.stop()
        (self.root / "data/caches/kept.json").unlink()
        self.config = {"caches": []}
        server = self.start()
        self.call(server, "PUT", "/v1/caches/kept", cache_of(4, 8), 201)
        self.assertEqual(self.there(server, range(20)), list(range(12, 20)))
        self.call(server, "PUT", "/v1/caches/kept", cache_of(4, 8), 200)


class Folders(StartTest):
    def setUp(self):
        super().setUp()
        self.drive = self.root / "drive"
        self.config = {"caches": [], "disk": {"folders": [str(self.drive)]}}

    def fill(self, *flags):
        server = self.start(*flags)
        self.call(server, "PUT", "/v1/caches/kept", cache_of(4, 8), 201)
        self.put(server, range(4))
        self.assertEqual(server.stop(), 0)

    def expect_waits_for(self, folder, back):
        """A start with an empty folder does not fill it and reports it. The blocks return with the folder."""
        server = self.start()
        status, problem = self.ready(server)
        self.assertEqual(status, 503)
        self.assertIn("kept", problem["detail"])
        unmade = self.call(server, "GET", "/v1/system")["unmade_caches"]
        self.assertEqual([(one["cache"], one["awaits_engine"]) for one in unmade], [("kept", False)])
        self.assertIn(str(folder), unmade[0]["detail"])
        self.call(server, "GET", "/v1/caches/kept", expect=404)
        self.call(server, "PUT", "/v1/caches/kept", cache_of(4, 8), 503)
        self.call(server, "PUT", "/v1/caches/other", cache_of(4, 8), 503)
        self.call(server, "PUT", "/v1/caches/memory", cache_of(4), 201)  # everything else is served
        self.assertEqual(list(folder.iterdir()), [])
        back()
        eventually(lambda: self.ready(server)[0] == 200, "the cache to be there again")
        self.assertEqual(self.there(server, range(4)), list(range(4)))

    def empty(self, folder):
        away = folder.rename(folder.with_name("away"))
        folder.mkdir()

        def back():
            folder.rmdir()
            away.rename(folder)

        return back

    def test_an_empty_folder_instead_of_one_with_blocks_is_not_filled(self):
        self.fill()
        self.expect_waits_for(self.drive, self.empty(self.drive))

    def test_an_empty_folder_within_the_data_directory_is_not_filled(self):
        self.config = {"caches": []}
        self.fill()
        self.expect_waits_for(self.root / "data/disk", self.empty(self.root / "data/disk"))

    def test_an_empty_folder_of_a_configured_cache_is_not_filled(self):
        self.config["caches"] = [{"name": "kept", **cache_of(4, 8)}]
        server = self.start()
        self.put(server, range(4))
        server.stop()
        self.expect_waits_for(self.drive, self.empty(self.drive))

    def test_a_missing_folder_is_not_made_again(self):
        self.fill()
        away = self.drive.rename(self.root / "away")
        server = self.start()
        self.assertEqual(self.ready(server)[0], 503)
        self.assertFalse(self.drive.exists())
        away.rename(self.drive)
        eventually(lambda: self.ready(server)[0] == 200, "the cache to be there again")

    def test_a_new_folder_is_used_if_the_settings_allow_it(self):
        self.fill()
        shutil.rmtree(self.drive)
        self.config["disk"]["replace_other_shape"] = True
        server = self.start()
        self.assertEqual(self.ready(server)[0], 200)
        self.put(server, range(4))

    def test_a_folder_of_another_data_directory_is_left_alone(self):
        self.fill()
        other = self.root / "other"
        other.mkdir()
        before = sorted(self.drive.rglob("*"))
        server = self.start(folder=other)
        self.call(server, "PUT", "/v1/caches/mine", cache_of(4, 8), 503)
        self.assertEqual(sorted(self.drive.rglob("*")), before)
        server.stop()
        self.assertEqual(self.there(self.start(), range(4)), list(range(4)))

    def test_a_moved_folder_of_blocks_is_recognised(self):
        self.fill()
        self.drive.rename(self.root / "new-drive")
        self.config["disk"]["folders"] = [str(self.root / "new-drive")]
        server = self.start()
        self.assertEqual(self.there(server, range(4)), list(range(4)))

    def test_a_moved_data_directory_has_its_blocks(self):
        self.fill()
        (self.root / "elsewhere").mkdir()
        (self.root / "data").rename(self.root / "elsewhere/data")
        server = self.start(folder=self.root / "elsewhere")
        self.assertEqual(self.there(server, range(4)), list(range(4)))

    def test_a_copied_data_directory_can_be_served_beside_the_original(self):
        self.config = {"caches": []}
        self.fill()
        (self.root / "elsewhere").mkdir()
        subprocess.run(["cp", "-a", self.root / "data", self.root / "elsewhere/data"], check=True)
        servers = [self.start(folder=self.root / "elsewhere"), self.start()]
        for server in servers:
            self.assertEqual(self.there(server, range(4)), list(range(4)))
            self.put(server, range(4, 6))
        for server in servers:
            server.stop()
        self.assertEqual(self.there(self.start(folder=self.root / "elsewhere"), range(6)), list(range(6)))

    def test_a_copied_data_directory_does_not_use_the_originals_folders(self):
        self.fill()
        (self.root / "elsewhere").mkdir()
        subprocess.run(["cp", "-a", self.root / "data", self.root / "elsewhere/data"], check=True)
        copy = self.start(folder=self.root / "elsewhere")
        self.assertEqual(self.ready(copy)[0], 503)
        server = self.start()
        self.assertEqual(self.there(server, range(4)), list(range(4)))
        self.assertEqual(self.ready(server)[0], 200)

    def test_a_data_directory_that_must_exist_is_not_made(self):
        ended = self.run_to_end("--known-data-dir")
        self.assertEqual(ended.returncode, MAY_PASS, ended.stderr)
        self.assertFalse((self.root / "data").exists())
        self.fill()
        self.assertEqual(self.there(self.start("--known-data-dir"), range(4)), list(range(4)))

    def test_a_damaged_identity_is_repaired(self):
        self.fill()
        for _ in range(2):
            (self.root / "data/identity").write_text("nothing of use")
            server = self.start()
            self.assertEqual(self.there(server, range(4)), list(range(4)))
            server.stop()

    def test_a_damaged_mark_is_repaired(self):
        self.fill()
        (self.drive / "cairn~folder").write_text("")
        server = self.start()
        self.assertEqual(self.there(server, range(4)), list(range(4)))
        server.stop()
        self.assertNotEqual((self.drive / "cairn~folder").read_text(), "")

    def test_a_removed_slot_file_is_made_again(self):
        self.fill()
        for file in self.drive.glob("kept*"):
            file.unlink()
        server = self.start()
        self.assertEqual(self.ready(server)[0], 200)
        self.assertEqual(self.there(server, range(4)), [])
        self.put(server, range(4))

    def test_a_truncated_slot_file_keeps_the_remaining_blocks(self):
        self.fill()
        os.truncate(self.drive / "kept", 8192 + 2 * 8192)  # the labels, and the first two slots
        server = self.start()
        self.assertEqual(self.there(server, range(4)), [0, 1])


class Starts(StartTest):
    def test_a_cache_that_cannot_be_made_can_be_deleted(self):
        server = self.start()
        self.call(server, "PUT", "/v1/caches/kept", cache_of(4, 8), 201)
        server.stop()
        shutil.rmtree(self.root / "data/disk")
        server = self.start()
        self.assertEqual(self.ready(server)[0], 503)
        self.call(server, "DELETE", "/v1/caches/kept", expect=204)
        self.assertEqual(self.ready(server)[0], 200)
        self.call(server, "DELETE", "/v1/caches/kept", expect=404)
        server.stop()
        self.assertEqual(self.ready(self.start())[0], 200)

    def test_a_port_in_use_is_a_temporary_error(self):
        server = self.start()
        ended = self.run_to_end(listen=server.address, data="other")
        self.assertEqual(ended.returncode, MAY_PASS, ended.stderr)
        self.assertIn(server.address, ended.stderr)

    def test_a_data_directory_in_use_is_a_temporary_error_even_without_its_lock(self):
        server = self.start()
        for _ in range(2):
            ended = self.run_to_end()
            self.assertEqual(ended.returncode, MAY_PASS, ended.stderr)
            self.assertIn("in use by another server", ended.stderr)
            (self.root / "data/lock").unlink(missing_ok=True)
        self.assertEqual(server.stop(), 0)
        self.start()

    def test_a_shorter_maximum_lease_limits_the_default(self):
        server = self.start()
        self.call(server, "PUT", "/v1/caches/kept", cache_of(4, 8), 201)
        self.put(server, range(2))
        server.stop()
        self.config = {"caches": [{"name": "configured", **cache_of(4, 8)}]}
        server = self.start("--max-lease-ms", "1000")
        self.assertEqual(self.ready(server)[0], 200)
        self.assertEqual(self.there(server, range(2)), [0, 1])
        self.call(server, "PUT", "/v1/caches/made", cache_of(4), 201)
        begun = self.call(server, "GET", "/v1/system")["uptime_ms"]
        answer = self.call(server, "POST", "/v1/caches/kept/allocate", {"count": 1, "tier": "pinned"})
        self.assertTrue(answer["lease"])
        self.assertGreaterEqual(begun, 0)
        self.call(server, "POST", "/v1/caches/kept/allocate",
                  {"count": 1, "tier": "pinned", "lease_ms": 1001}, 400)

    def test_an_unknown_variable_is_refused(self):
        for name in ("CAIRN_MAX_LEASE", "CAIRN_LOGLEVEL", "CAIRN_CACHES", "CAIRN_"):
            ended = self.run_to_end(env={**os.environ, name: "1"})
            self.assertEqual(ended.returncode, WRONG_SETTING, ended.stderr)
            self.assertIn(name, ended.stderr)

    def test_variables_of_clients_and_orchestrators_are_accepted(self):
        others = {"CAIRN_TOKEN": "t", "CAIRN_CA": "/x", "CAIRN_SERVER": "build/x", "CAIRN_PYTHON": "python3",
                  "CAIRN_REQUIRE_GPU": "1", "CAIRN_ENGINES": "all", "CAIRN_SERVICE_HOST": "10.0.0.1",
                  "CAIRN_PORT": "tcp://10.0.0.1:80", "CAIRN_PORT_7070_TCP_ADDR": "10.0.0.1",
                  "CAIRN_HEADLESS_SERVICE_PORT_HTTP": "80", "CAIRN_FROM_NOBODY": ""}
        self.start(env={**os.environ, **others})

    def test_a_missing_certificate_is_reported(self):
        ended = self.run_to_end("--tls-cert", "/nowhere/cert.pem", "--tls-key", "/nowhere/key.pem")
        self.assertEqual(ended.returncode, WRONG_SETTING)
        self.assertIn("'/nowhere/cert.pem' cannot be used: No such file or directory", ended.stderr)


@unittest.skipUnless(UNSHARED in os.environ, "only root mounts file systems of a test's own")
class MountTest(StartTest):
    OPTIONS = ""

    def setUp(self):
        super().setUp()
        self.mount = self.root / "mount"
        self.mount.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=14m{self.OPTIONS}", "tmpfs", self.mount],
                       check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.mount], check=True)
        self.addCleanup(lambda: [server.stop(signal.SIGKILL) for server in self.running])

    def serve(self):
        server = ServerElsewhere(self.root, self.mount / "data", *self.command("--disk-checkpoint-ms", "500"))
        self.running.append(server)
        return server


class FullDisk(MountTest):
    def fill_disk(self):
        with open(self.mount / "other-logs", "wb", buffering=0) as file:
            for size in (65536, 4096):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    pass

    def make_room(self):
        (self.mount / "other-logs").unlink()

    def begin(self, how=signal.SIGKILL, numbers=range(4)):
        server = self.serve()
        if not self.config["caches"]:
            self.call(server, "PUT", "/v1/caches/kept", cache_of(16, 32), 201)
        self.put(server, numbers)
        server.stop(how)
        self.fill_disk()

    def logs(self):
        return {path.name for path in (self.mount / "data/disk").glob("kept~log.*")}

    def expect_served(self, server, numbers=range(4)):
        self.assertEqual(self.there(server, numbers), list(numbers))
        self.assertEqual(self.ready(server)[0], 200)
        self.put(server, [100])
        self.call(server, "PUT", "/v1/caches/kept", cache_of(16, 32), 200)

    def test_serves_its_blocks_and_records_changes_once_there_is_room(self):
        for how in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(how=how):
                if (self.mount / "data").exists():
                    shutil.rmtree(self.mount / "data")
                self.begin(how)
                before = self.logs()
                server = self.serve()
                self.expect_served(server)
                self.make_room()
                eventually(lambda: self.logs() - before and "~index" in str(list(self.mount.rglob("kept~*"))),
                           "the index to be written again")
                self.call(server, "DELETE", "/v1/caches/kept/keys/0001", expect=204)
                self.put(server, [5])
                server.stop(signal.SIGKILL)
                server = self.serve()
                self.assertEqual(self.there(server, range(6)), [0, 2, 3, 5])
                server.stop()

    def test_loses_nothing_if_killed_without_room(self):
        self.begin()
        for number in range(10, 13):
            server = self.serve()
            self.assertEqual(self.there(server, range(4)), list(range(4)))
            self.put(server, [number])
            server.stop(signal.SIGKILL)
        self.make_room()
        self.assertEqual(self.there(self.serve(), [*range(4), *range(10, 13)]), [*range(4), *range(10, 13)])

    def test_serves_a_configured_cache(self):
        self.config = {"caches": [{"name": "kept", **cache_of(16, 32)}]}
        self.begin()
        self.expect_served(self.serve())

    def test_grows_a_tier_once_there_is_room(self):
        self.config = {"caches": [{"name": "kept", **cache_of(16, 32)}]}
        self.begin()
        self.config = {"caches": [{"name": "kept", **cache_of(16, 64)}]}
        server = self.serve()
        self.assertEqual(self.there(server, range(4)), list(range(4)))
        self.assertEqual(self.settings(server, "kept")["sizes"]["disk"], 32)
        self.call(server, "PUT", "/v1/caches/kept", cache_of(16, 64), 200)
        self.make_room()
        eventually(lambda: self.settings(server, "kept")["sizes"]["disk"] == 64, "the tier to grow")
        self.assertEqual(self.there(server, range(4)), list(range(4)))

    def test_reports_a_cache_without_room_until_there_is_room(self):
        self.begin()
        self.config = {"caches": [{"name": "late", **cache_of(16, 32)}]}
        server = self.serve()
        self.assertEqual(self.there(server, range(4)), list(range(4)))
        status, problem = self.ready(server)
        self.assertEqual((status, "late (no_capacity)" in problem["detail"]), (503, True), problem)
        self.make_room()
        eventually(lambda: self.ready(server)[0] == 200, "the other cache")
        self.call(server, "GET", "/v1/caches/late")

    def test_refuses_changes_that_it_cannot_record(self):
        server = self.serve()
        self.call(server, "PUT", "/v1/caches/kept", cache_of(16, 32), 201)
        self.put(server, range(4))
        before = self.settings(server, "kept")
        self.fill_disk()
        self.call(server, "PATCH", "/v1/caches/kept", {"eviction": "lru"}, 507)
        self.call(server, "PATCH", "/v1/caches/kept", {"tiers": {"disk": {"num_blocks": 4000}}}, 507)
        self.call(server, "PUT", "/v1/caches/more", cache_of(16, 32), 507)
        self.assertEqual(self.settings(server, "kept"), before)
        server.stop(signal.SIGKILL)
        (self.mount / "data/caches/kept.json").write_text("")  # its slot file has the same information
        server = self.serve()
        self.assertEqual(self.settings(server, "kept"), before)
        self.call(server, "GET", "/v1/caches/more", expect=404)
        self.assertEqual(self.there(server, range(4)), list(range(4)))

    def test_keeps_its_blocks_if_a_creation_cannot_be_recorded(self):
        self.begin(signal.SIGTERM)
        (self.mount / "data/caches/kept.json").unlink()
        self.fill_disk()
        server = self.serve()
        self.call(server, "PUT", "/v1/caches/kept", cache_of(16, 32), 507)
        self.make_room()
        self.call(server, "PUT", "/v1/caches/kept", cache_of(16, 32), 201)
        self.assertEqual(self.there(server, range(4)), list(range(4)))


class ReadOnly(MountTest):
    def remount(self, how):
        subprocess.run(["mount", "-o", f"remount,{how}", self.mount], check=True)

    def test_ends_a_start_with_a_temporary_error(self):
        server = self.serve()
        self.call(server, "PUT", "/v1/caches/kept", cache_of(16, 32), 201)
        self.put(server, range(4))
        server.stop()
        self.remount("ro")
        ended = self.run_to_end(data="mount/data")
        self.assertEqual(ended.returncode, MAY_PASS, ended.stderr)
        self.assertIn("Read-only file system", ended.stderr)
        self.remount("rw")
        self.assertEqual(self.there(self.serve(), range(4)), list(range(4)))


class NoInodes(FullDisk):
    OPTIONS = ",nr_inodes=64"

    def fill_disk(self):
        try:
            for number in range(1000):
                (self.mount / f"other-{number}").touch()
        except OSError:
            pass

    def make_room(self):
        for file in self.mount.glob("other-*"):
            file.unlink()

    # Slots need no new inode.
    test_grows_a_tier_once_there_is_room = None
    test_refuses_what_it_could_not_remember = None


def main():
    global PROGRAM
    if UNSHARED not in os.environ and os.geteuid() == 0:
        alone = ["unshare", "--mount", "--propagation", "private"]
        if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0:
            os.environ[UNSHARED] = "1"
            os.execvp(alone[0], [*alone, sys.executable, "-B", *sys.argv])
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()


if __name__ == "__main__":
    main()

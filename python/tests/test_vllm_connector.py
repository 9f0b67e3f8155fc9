"""The connector's class, with stand-ins for vLLM's modules, whose interface was recorded."""

from __future__ import annotations

import enum
import unittest
from types import SimpleNamespace
from typing import Any

from cairn.engine.actions import OUTCOMES
from cairn.engine.plan import Step
from server import eventually
from stand_ins import RECORDED, has_the_recorded_interface, stand_in
from test_vllm import configuration


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class Base:
    def __init__(self, vllm_config: Any, role: Role, kv_cache_config: Any) -> None:
        self._connector_metadata: Any = None

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        self._connector_metadata = connector_metadata

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        _, received = self.get_finished(finished_req_ids)  # type: ignore[attr-defined]
        return TransferResults(finished_recving=received or set())

    def _get_connector_metadata(self) -> Any:
        assert self._connector_metadata is not None
        return self._connector_metadata


class TransferResults(SimpleNamespace):
    def __init__(self, **given: Any) -> None:
        super().__init__(**{"finished_sending": set(), "finished_recving": set(), "failed_recving": set()} | given)


class Stats:
    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data


def a_request(**more: object) -> SimpleNamespace:
    """vLLM's request, as far as the connector looks at it."""
    plain: dict[str, object] = {
        "request_id": "r",
        "all_token_ids": list(range(40)),
        "prompt_embeds": None,
        "lora_request": None,
        "cache_salt": None,
        "kv_transfer_params": None,
        "mm_features": [],
    }
    return SimpleNamespace(**{**plain, **more})


class Connector(unittest.TestCase):
    kind: Any

    @classmethod
    def setUpClass(cls) -> None:
        transfer = "vllm.distributed.kv_transfer.kv_connector.v1"
        group = SimpleNamespace(rank_in_group=0)
        modules: dict[str, Any] = {
            f"{transfer}.base": {
                "KVConnectorBase_V1": Base,
                "KVConnectorMetadata": object,
                "KVConnectorRole": Role,
                "KVConnectorTransferResults": TransferResults,
                "SupportsHMA": type("SupportsHMA", (), {}),
            },
            f"{transfer}.metrics": {"KVConnectorStats": Stats, "KVConnectorPromMetrics": object},
            "vllm.distributed.parallel_state": {
                "get_pp_group": lambda: group,
                "get_tensor_model_parallel_rank": lambda: 0,
            },
        }
        stand_in(cls, modules, "cairn.vllm.connector", "cairn.vllm.stats")
        import cairn.vllm

        cls.kind = cairn.vllm.CairnConnector

    def connector(self, role: Role) -> Any:
        config, cache = configuration(extra={"cairn.url": "unix:/nowhere"})
        connector = self.kind(config, role, cache)
        self.addCleanup(connector.shutdown)
        self.assertEqual(config.kv_transfer_config.kv_load_failure_policy, "recompute")
        return connector

    def test_it_has_the_recorded_interface_of_vllm(self) -> None:
        has_the_recorded_interface(self, self.kind, "vllm")

    def test_vllm_has_what_the_connector_uses_for_several_groups(self) -> None:
        called = RECORDED["vllm.called"]["methods"]
        self.assertIn("failed_recving", called["KVConnectorTransferResults"]["parameters"])
        self.assertIn("boundary_state_offloads", called["KVConnectorBlockState"]["parameters"])

    def test_no_error_reaches_the_engine(self) -> None:
        scheduler, worker = self.connector(Role.SCHEDULER), self.connector(Role.WORKER)
        # None of these arguments has the members that the method needs.
        with self.assertLogs("vllm.cairn", "ERROR"):
            self.assertEqual(scheduler.get_num_new_matched_tokens(object(), 0), (0, False))
            scheduler.on_new_request(object())
            scheduler.update_state_after_alloc(object(), object(), 0)
            self.assertEqual(scheduler.build_connector_meta(object()).step, Step())
            scheduler.update_connector_output(object())
            self.assertEqual(scheduler.request_finished(object(), []), (False, None))
            self.assertFalse(scheduler.reset_cache())
            self.assertEqual(worker.take_events(), [])
            worker.bind_connector_metadata(object())
            worker.start_load_kv(object())
            self.assertEqual(worker.get_finished(set()), (None, None))
            self.assertEqual(worker.get_transfer_results(set()), TransferResults())
            self.assertEqual(worker.get_block_ids_with_load_errors(), set())
            worker.wait_for_save()
            # A call for the other side.
            self.assertEqual(worker.get_num_new_matched_tokens(object(), 0), (0, False))

    def test_a_missing_server_is_a_miss(self) -> None:
        scheduler = self.connector(Role.SCHEDULER)
        request = a_request(skip_reading_prefix_cache=False)
        with self.assertLogs("vllm.cairn", "WARNING"):
            while (found := scheduler.get_num_new_matched_tokens(request, 0))[0] is None:
                pass
        self.assertEqual(found, (0, False))
        stats = scheduler.get_kv_connector_stats()
        self.assertEqual((stats.data["lookup_failures"], stats.data["hit_blocks"]), (1, 0))
        self.assertIsNone(scheduler.get_kv_connector_stats())

    def test_actions_of_a_request_go_to_the_server(self) -> None:
        scheduler = self.connector(Role.SCHEDULER)
        request = a_request(
            kv_transfer_params={"actions": [{"type": "unpin", "target": {"session": "s"}}]},
            kv_hints=SimpleNamespace(protocol_version="1", message_id="m", actions=[]),
        )
        with self.assertLogs("vllm.cairn", "WARNING") as logs:
            scheduler.on_new_request(request)
            eventually(lambda: bool(logs.output))
        # There is no server.
        self.assertEqual(scheduler.get_kv_connector_stats().data, {"actions_failed": 1})
        self.assertIn("actions of requests", logs.output[0])

    def test_each_outcome_of_an_action_has_a_metric(self) -> None:
        from cairn.vllm.stats import COUNTERS

        self.assertLessEqual({f"actions_{outcome}" for outcome in (*OUTCOMES, "failed")}, set(COUNTERS))

    def test_without_kv_events_none_are_published(self) -> None:
        self.assertEqual(self.connector(Role.SCHEDULER).take_events(), [])

    def test_a_lost_hand_off_is_only_a_miss(self) -> None:
        self.assertFalse(self.connector(Role.SCHEDULER).requires_kv_delivery)

    def test_counts_of_all_workers_are_added(self) -> None:
        one, two = (
            self.kind.build_kv_connector_stats({"a": 1}),
            self.kind.build_kv_connector_stats({"a": 2, "b": 1}),
        )
        self.assertEqual(one.aggregate(two).reduce(), {"a": 3, "b": 1})
        self.assertTrue(self.kind.build_kv_connector_stats().is_empty())


if __name__ == "__main__":
    unittest.main()

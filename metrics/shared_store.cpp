#include "metrics/shared_store.hpp"

#include "metrics/families.hpp"

namespace cairn {
namespace {

using Builder = MetricFamilyBuilder;

void add_store(std::vector<prometheus::MetricFamily>& out, const SharedStoreStats& store) {
  auto ready = Builder::gauge(
      {"cairn_shared_ready", "1 where it is known which node of the shared store has what."});
  ready.add({}, std::uint64_t{store.is_ready});
  auto nodes = Builder::gauge(
      {"cairn_shared_nodes", "Nodes of the shared store, by state; left_alone: it failed."});
  std::uint64_t open = 0;
  for (const auto& node : store.nodes) open += node.is_open ? 1 : 0;
  nodes.add({{"state", "reached"}}, store.nodes.size() - open);
  nodes.add({{"state", "left_alone"}}, open);
  auto requests = Builder::counter(
      {"cairn_shared_requests_total", "Requests to the shared store, by operation and outcome."});
  auto bytes =
      Builder::counter({"cairn_shared_bytes_total", "Bytes read from it and written to it."});
  auto durations = Builder::histogram(
      {"cairn_shared_request_duration_seconds", "How long they took, with their wait here."});
  for (std::size_t i = 0; i < kNumStoreOperations; ++i) {
    const auto name = to_string(static_cast<StoreOperation>(i));
    const auto& operation = store.operations[i];
    for (std::size_t o = 0; o < kNumStoreOutcomes; ++o) {
      requests.add({{"operation", name}, {"outcome", to_string(static_cast<StoreOutcome>(o))}},
                   operation.outcomes[o]);
    }
    bytes.add({{"operation", name}}, operation.bytes);
    durations.add({{"operation", name}}, operation.durations);
  }
  for (Builder* builder : {&ready, &nodes, &requests, &bytes, &durations}) {
    out.push_back(std::move(*builder).take());
  }
}

}  // namespace

void add_shared(std::vector<prometheus::MetricFamily>& out, const SharedStats& stats) {
  add_store(out, stats.store);
  auto blocks = Builder::counter(
      {"cairn_shared_blocks_total",
       "Blocks fetched from the shared store and stored in it, and those that were not, by why."});
  auto wrong = Builder::counter(
      {"cairn_shared_wrong_values_total",
       "Values of the shared store that were not the block asked for, by why; they are erased."});
  auto looks = Builder::counter(
      {"cairn_shared_looks_total",
       "Matches that asked the shared store, were spared it, or got no answer in time."});
  auto waiting = Builder::gauge({"cairn_shared_waiting_blocks", "Blocks that wait to be stored."});
  for (const SharedTierStats& tier : stats.tiers) {
    const auto add = [&](std::string_view event, std::uint64_t count) {
      blocks.add({{"cache", tier.cache}, {"event", event}}, count);
    };
    add("fetched", tier.fetched_blocks);
    add("stored", tier.stored_blocks);
    add("there_already", tier.there_already);
    add("dropped_full", tier.dropped_full);
    add("dropped_failed", tier.dropped_failed);
    add("absent", tier.absent);
    for (std::size_t i = 0; i < kNumWrongValues; ++i) {
      wrong.add({{"cache", tier.cache}, {"reason", to_string(static_cast<WrongValue>(i))}},
                tier.wrong[i]);
    }
    looks.add({{"cache", tier.cache}, {"result", "asked"}}, tier.probes);
    looks.add({{"cache", tier.cache}, {"result", "spared"}}, tier.probes_spared);
    looks.add({{"cache", tier.cache}, {"result", "late"}}, tier.probes_late);
    waiting.add({{"cache", tier.cache}}, tier.waiting_blocks);
  }
  auto missed = Builder::counter(
      {"cairn_shared_missed_events_total",
       "Events of blocks that came too fast to be looked at; those blocks are not stored."});
  missed.add({}, stats.missed_events);
  for (Builder* builder : {&blocks, &wrong, &looks, &waiting, &missed}) {
    out.push_back(std::move(*builder).take());
  }
}

}  // namespace cairn

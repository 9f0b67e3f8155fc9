#include "metrics/families.hpp"
#include "metrics/parts.hpp"

namespace cairn {

using Builder = MetricFamilyBuilder;

void add_groups(std::vector<prometheus::MetricFamily>& out, const GroupsStats& stats) {
  auto groups = Builder::gauge({"cairn_groups", "Groups that this server is a rank of, by state."});
  auto ranks = Builder::gauge(
      {"cairn_group_ranks", "Ranks of those groups, including this server's own, by state."});
  for (std::size_t i = 0; i < kNumGroupStates; ++i) {
    const auto state = to_string(static_cast<GroupState>(i));
    groups.add({{"state", state}}, stats.groups[i]);
    ranks.add({{"state", state}}, stats.ranks[i]);
  }
  auto failures = Builder::counter(
      {"cairn_group_failures_total", "Groups that failed: a rank was lost, or did not join."});
  failures.add({}, stats.failures);
  auto queue = Builder::gauge(
      {"cairn_collective_queue_depth", "Group operations that are waiting or running."});
  queue.add({}, stats.queued_operations);

  auto operations = Builder::counter({"cairn_collective_operations_total",
                                      "Group operations by kind and outcome on this server."});
  auto blocks = Builder::counter(
      {"cairn_collective_blocks_total",
       "Blocks sent to and received from other ranks; a broadcast counts once on its root."});
  auto bytes = Builder::counter(
      {"cairn_collective_bytes_total", "Bytes of those blocks and of the numbers of all_reduce."});
  auto durations = Builder::histogram(
      {"cairn_collective_duration_seconds",
       "How long group operations took here, including the wait for the other ranks."});
  for (std::size_t i = 0; i < kNumCollectiveKinds; ++i) {
    const auto kind = to_string(static_cast<CollectiveKind>(i));
    const CollectiveKindStats& one = stats.kinds[i];
    for (std::size_t outcome = 0; outcome < kNumTransferOutcomes; ++outcome) {
      operations.add(
          {{"kind", kind}, {"outcome", to_string(static_cast<TransferOutcome>(outcome))}},
          one.operations[outcome]);
    }
    blocks.add({{"kind", kind}, {"direction", "sent"}}, one.sent_blocks);
    blocks.add({{"kind", kind}, {"direction", "received"}}, one.received_blocks);
    bytes.add({{"kind", kind}, {"direction", "sent"}}, one.sent_bytes);
    bytes.add({{"kind", kind}, {"direction", "received"}}, one.received_bytes);
    durations.add({{"kind", kind}}, one.durations);
  }
  for (Builder* builder :
       {&groups, &ranks, &failures, &queue, &operations, &blocks, &bytes, &durations}) {
    out.push_back(std::move(*builder).take());
  }
}

}  // namespace cairn

#include <algorithm>
#include <iterator>

#include "metrics/families.hpp"
#include "metrics/parts.hpp"

namespace cairn {
namespace {

using Builder = MetricFamilyBuilder;

constexpr std::string_view kPeerRead = "peer_read";

void add_states(Builder& family, const std::vector<RemoteStoreStats::Node>& nodes) {
  std::uint64_t open = 0;
  for (const auto& node : nodes) open += node.is_open ? 1 : 0;
  family.add({{"state", "reached"}}, nodes.size() - open);
  family.add({{"state", "left_alone"}}, open);
}

// A node that got no requests has no series.
void add_nodes(Builder& family, const RemoteStats& stats) {
  const auto add = [&](std::string_view operation, const NodeDurations::OfNode& node,
                       const NodeHistogram::Snapshot& durations) {
    if (std::ranges::count(durations.counts, 0U) == std::ssize(durations.counts)) return;
    family.add({{"node", node.node}, {"operation", operation}}, durations);
  };
  for (const NodeDurations::OfNode& node : stats.store.by_node) {
    for (std::size_t i = 0; i < kNumStoreOperations; ++i) {
      add(to_string(static_cast<StoreOperation>(i)), node, node.operations[i]);
    }
  }
  for (const NodeDurations::OfNode& server : stats.peers.by_server) {
    add(kPeerRead, server, server.operations[static_cast<std::size_t>(StoreOperation::read)]);
  }
}

void add_remote_match(std::vector<prometheus::MetricFamily>& out, const RemoteStats& stats) {
  const RemoteStoreStats& store = stats.store;
  auto ready =
      Builder::gauge({"cairn_shared_ready",
                      "1 if the server knows which node of the shared store has which keys."});
  ready.add({}, std::uint64_t{store.is_ready});
  auto nodes =
      Builder::gauge({"cairn_shared_nodes",
                      "Nodes of the shared store, by state; left_alone: skipped after a failure."});
  add_states(nodes, store.nodes);
  auto peers = Builder::gauge(
      {"cairn_shared_peers",
       "Servers that blocks were read from, by state; left_alone: skipped after a failure."});
  add_states(peers, stats.peers.servers);
  auto requests = Builder::counter({"cairn_shared_requests_total",
                                    "Requests to the shared store, by operation and outcome; "
                                    "peer_read: requests to servers that hold a block."});
  auto bytes = Builder::counter(
      {"cairn_shared_bytes_total",
       "Bytes read from the store or from such a server, and written to the store."});
  auto durations =
      Builder::histogram({"cairn_shared_request_duration_seconds",
                          "How long those requests took, including their wait on this server."});
  const auto add = [&](std::string_view name, const RemoteStoreStats::Operation& operation) {
    for (std::size_t o = 0; o < kNumStoreOutcomes; ++o) {
      requests.add({{"operation", name}, {"outcome", to_string(static_cast<StoreOutcome>(o))}},
                   operation.outcomes[o]);
    }
    bytes.add({{"operation", name}}, operation.bytes);
    durations.add({{"operation", name}}, operation.durations);
  };
  for (std::size_t i = 0; i < kNumStoreOperations; ++i) {
    add(to_string(static_cast<StoreOperation>(i)), store.operations[i]);
  }
  add(kPeerRead, stats.peers.reads);
  auto by_node = Builder::histogram(
      {"cairn_shared_node_request_duration_seconds",
       "How long requests to each node of the shared store, or to each such server, took, "
       "including the wait for a connection; other: nodes and servers beyond 64."});
  add_nodes(by_node, stats);
  for (Builder* builder : {&ready, &nodes, &peers, &requests, &bytes, &durations, &by_node}) {
    out.push_back(std::move(*builder).take());
  }
}

void add_bucket(std::vector<prometheus::MetricFamily>& out,
                const RemoteStoreStats::Bucket& bucket) {
  auto requests =
      Builder::counter({"cairn_shared_bucket_requests_total",
                        "Requests to the bucket, by kind; held_back: not sent because of a bound "
                        "of shared.s3."});
  requests.add({{"call", "get"}}, bucket.gets);
  requests.add({{"call", "put"}}, bucket.puts);
  requests.add({{"call", "list"}}, bucket.lists);
  requests.add({{"call", "delete"}}, bucket.deletes);
  requests.add({{"call", "held_back"}}, bucket.over_bounds);
  auto moved = Builder::counter(
      {"cairn_shared_bucket_moved_bytes_total", "Bytes of those requests, by direction."});
  moved.add({{"direction", "received"}}, bucket.received_bytes);
  moved.add({{"direction", "sent"}}, bucket.sent_bytes);
  auto objects = Builder::gauge(
      {"cairn_shared_bucket_objects", "Objects of all servers in the bucket that this one knows."});
  objects.add({}, bucket.objects);
  auto values =
      Builder::gauge({"cairn_shared_bucket_values", "Blocks in those objects that it finds."});
  values.add({}, bucket.values);
  auto bytes = Builder::gauge(
      {"cairn_shared_bucket_bytes",
       "Bytes of those objects; dead: directories, and blocks that it does not find there."});
  bytes.add({{"state", "live"}}, bucket.live_bytes);
  bytes.add({{"state", "dead"}}, bucket.dead_bytes);
  auto changed = Builder::counter(
      {"cairn_shared_bucket_objects_changed_total",
       "Objects that this server removed, or rewrote because less than half was of use."});
  changed.add({{"change", "removed"}}, bucket.removed_objects);
  changed.add({{"change", "rewritten"}}, bucket.rewritten_objects);
  auto cost = Builder::counter(
      {"cairn_shared_bucket_requests_cost_total",
       "What this server's requests and received bytes cost by shared.s3.prices, an estimate."});
  cost.add({}, bucket.requests_cost);
  auto month = Builder::gauge(
      {"cairn_shared_bucket_cost_per_month",
       "What the objects of all servers cost in a month by shared.s3.prices, an estimate."});
  month.add({}, bucket.cost_per_month);
  for (Builder* builder : {&requests, &moved, &objects, &values, &bytes, &changed, &cost, &month}) {
    out.push_back(std::move(*builder).take());
  }
}

}  // namespace

void add_remote(std::vector<prometheus::MetricFamily>& out, const RemoteStats& stats) {
  add_remote_match(out, stats);
  if (stats.store.bucket) add_bucket(out, *stats.store.bucket);
  auto blocks = Builder::counter(
      {"cairn_shared_blocks_total",
       "Blocks fetched from and stored in the shared store, and those that were not, by reason."});
  auto wrong = Builder::counter(
      {"cairn_shared_wrong_values_total",
       "Values of the shared store, and answers of servers it names, that were not the block asked "
       "for, by reason. Such values are erased; such a server no longer counts as a holder."});
  auto looks = Builder::counter(
      {"cairn_shared_looks_total",
       "Matches by look-up in the shared store: asked, skipped, or no answer in time."});
  auto waiting =
      Builder::gauge({"cairn_shared_waiting_blocks", "Blocks waiting to be stored or published."});
  for (const RemoteTierStats& tier : stats.tiers) {
    const auto add = [&](std::string_view event, std::uint64_t count) {
      blocks.add({{"cache", tier.cache}, {"event", event}}, count);
    };
    add("fetched", tier.fetched_blocks);
    add("stored", tier.stored_blocks);
    add("there_already", tier.there_already);
    add("dropped_full", tier.dropped_full);
    add("dropped_failed", tier.dropped_failed);
    add("absent", tier.absent);
    add("announced", tier.announced);
    add("withdrawn", tier.withdrawn);
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
       "Block events that came too fast to be processed; those blocks are not stored."});
  missed.add({}, stats.missed_events);
  auto same_url = Builder::gauge({"cairn_shared_same_url_servers",
                                  "Other servers that advertise this server's URL "
                                  "(shared.advertise): each withdraws the others' blocks."});
  same_url.add({}, stats.same_url);
  for (Builder* builder : {&blocks, &wrong, &looks, &waiting, &missed, &same_url}) {
    out.push_back(std::move(*builder).take());
  }
}

}  // namespace cairn

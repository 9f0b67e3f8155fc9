#include <algorithm>

#include "base/printable.hpp"
#include "base/version.hpp"
#include "blockmgr/index/pressure.hpp"
#include "server/assets/assets.hpp"
#include "server/assets/build_info.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"
#include "server/routes/metrics_source.hpp"
#include "server/routes/part_uses.hpp"
#include "server/routes/warnings.hpp"

namespace cairn::routes {
namespace {

ordered_json devices_body(const DeviceRuntime& runtime) {
  ordered_json devices = ordered_json::array();
  for (const DeviceInfo& device : runtime.devices()) {
    devices.push_back({{"id", device.id},
                       {"name", device.name},
                       {"total_bytes", device.total_bytes},
                       {"numa_node", device.numa_node}});
  }
  return devices;
}

ordered_json left_out_body(const DeviceRuntime& runtime) {
  ordered_json devices = ordered_json::array();
  for (const LeftOutDevice& device : runtime.left_out()) {
    devices.push_back({{"id", device.id}, {"why", device.why}});
  }
  return devices;
}

ordered_json pressure_body(const BlockManager& manager) {
  ordered_json pressure = ordered_json::object();
  for (const auto& cache : manager.caches()) {
    const CacheStats stats = cache->stats();
    ordered_json tiers = ordered_json::object();
    for (Tier tier : kTiers) {
      const TierStats& tier_stats = stats.tiers[index_of(tier)];
      if (tier_stats.present) {
        tiers[std::string(to_string(tier))] = to_string(tier_stats.pressure);
      }
    }
    pressure[stats.name] = std::move(tiers);
  }
  return pressure;
}

ordered_json pools_body(const Service& service) {
  ordered_json pools = ordered_json::array();
  for (const NamedAllocator& pool : pools_of(service)) {
    pools.push_back({{"allocator", pool.allocator},
                     {"device", pool.device},
                     {"allocated_bytes", pool.now.allocated_bytes},
                     {"limit_bytes", pool.now.limit_bytes},
                     {"level", to_string(pool_pressure(pool.now, service.pool_pressure))}});
  }
  return pools;
}

ordered_json nodes_body(const std::vector<RemoteStoreStats::Node>& all) {
  ordered_json nodes = ordered_json::array();
  for (const auto& node : all) {
    nodes.push_back({{"address", node.address},
                     {"state", node.is_open ? "left_alone" : "reached"},
                     {"last_error", node.last_error.empty() ? ordered_json(nullptr)
                                                            : ordered_json(node.last_error)}});
  }
  return nodes;
}

// Returns null without a shared store. A node's last error never contains credentials.
ordered_json shared_body(const Service& service) {
  if (service.shared == nullptr) return nullptr;
  const RemoteStoreStats stats = service.shared->store_stats();
  return {{"store", service.shared->has(RemoteTierConfig::Store::redis) ? "redis" : "s3"},
          {"ready", stats.is_ready},
          {"same_url", service.shared->same_url()},
          {"nodes", nodes_body(stats.nodes)},
          {"peers", nodes_body(service.shared->peer_stats().servers)}};
}

ordered_json warnings_body(const Service& service) {
  ordered_json warnings = ordered_json::array();
  for (const Warning& warning : warnings_of(service)) {
    warnings.push_back(
        {{"kind", warning.kind}, {"subject", warning.subject}, {"detail", warning.detail}});
  }
  return warnings;
}

ordered_json unmade_body(const UnmadeCaches& unmade) {
  ordered_json caches = ordered_json::array();
  for (const UnmadeCache& cache : unmade.list()) {
    caches.push_back({{"cache", cache.name},
                      {"code", to_string(cache.why.code)},
                      {"detail", cache.why.detail},
                      {"awaits_engine", cache.awaits_engine}});
  }
  return caches;
}

ordered_json system_body(const Service& service) {
  const http::HttpServerStats http = service.http_stats();
  const auto transfers = service.manager.transfer_counts();
  const TransferSchedulerStats scheduler = service.scheduler.stats();
  const auto lost = service.runtime.lost();
  return {{"version", kVersion},
          {"build",
           {{"type", build_info::kBuildType},
            {"compiler", build_info::kCompiler},
            {"sanitizer", build_info::kSanitizer}}},
          {"state", to_string(service.phase)},
          {"warnings", warnings_body(service)},
          {"uptime_ms", service.clock.unix_ms() - service.started_at_unix_ms},
          {"runtime", service.runtime.name()},
          {"runtime_fallback", service.runtime_fallback.empty()
                                   ? ordered_json(nullptr)
                                   : ordered_json(service.runtime_fallback)},
          {"devices", devices_body(service.runtime)},
          {"devices_left_out", left_out_body(service.runtime)},
          {"unmade_caches", unmade_body(service.unmade)},
          {"lost_device", lost ? ordered_json(*lost) : ordered_json(nullptr)},
          {"memory_visibility", to_string(service.runtime.visibility())},
          {"pressure", pressure_body(service.manager)},
          {"pools", pools_body(service)},
          {"parts", parts_body(collect_metrics(service))},
          {"shared", shared_body(service)},
          {"transfers", {{"queued", transfers.queued}, {"running", transfers.running}}},
          {"engine",
           {{"queued", scheduler.queued},
            {"running", scheduler.running},
            {"bytes_moved", scheduler.bytes_moved}}},
          {"http",
           {{"connections", http.connections_open},
            {"received_bytes", http.bytes_received},
            {"sent_bytes", http.bytes_sent}}}};
}

}  // namespace

void healthz(Service&, const Call&, Reply reply) { reply.document(200, {{"status", "ok"}}); }

void readyz(Service& service, const Call&, Reply reply) {
  const Phase phase = service.phase;
  if (auto ready = check_ready(phase, service.runtime, service.unmade); !ready)
    return reply.error(ready.error());
  reply.document(200, {{"status", to_string(phase)}});
}

void system(Service& service, const Call&, Reply reply) {
  answer_on(service.readers, std::move(reply),
            [&service](Reply& answer) { answer.document(200, system_body(service)); });
}

void metrics(Service& service, const Call&, Reply reply) {
  answer_on(service.readers, std::move(reply), [&service](Reply& answer) {
    http::Response response;
    response.content_type = kMetricsType;
    response.body = collect_metrics(service);
    answer.send(std::move(response));
  });
}

void openapi(Service&, const Call&, Reply reply) {
  http::Response response;
  response.content_type = kJsonType;
  response.body = assets::kOpenapi;
  reply.send(std::move(response));
}

// Returns the section of docs/operation.md about an alert. The alert rules link here, for readers
// who have only the rules.
void runbook(Service&, const Call& call, Reply reply) {
  const std::string_view name = call.path[0];
  const bool is_word = name.find_first_of("\r\n") == std::string_view::npos;
  const std::size_t begin = assets::kRunbooks.find("\n### " + std::string(name) + "\n");
  if (!is_word || begin == std::string_view::npos) {
    return reply.error(Error{ErrorCode::out_of_range,
                             "no alert is named '" + printable(name.substr(0, 64)) + "'"});
  }
  const std::string_view rest = assets::kRunbooks.substr(begin + 1);
  http::Response response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = rest.substr(0, rest.find("\n##"));
  reply.send(std::move(response));
}

void status_page(Service&, const Call&, Reply reply) {
  http::Response response;
  response.content_type = "text/html; charset=utf-8";
  // The page contains its own style and script, identified by their digests, and sends requests
  // only to this server.
  response.headers = "Content-Security-Policy: default-src 'none'; style-src 'sha256-";
  response.headers.append(assets::kStatusPageStyleDigest).append("'; script-src 'sha256-");
  response.headers.append(assets::kStatusPageScriptDigest)
      .append(
          "'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
          "Cross-Origin-Opener-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n"
          "X-Frame-Options: DENY\r\nCache-Control: no-cache\r\n");
  response.body = assets::kStatusPage;
  reply.send(std::move(response));
}

}  // namespace cairn::routes

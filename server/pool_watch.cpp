#include "server/pool_watch.hpp"

#include <algorithm>

#include "server/http/http_server.hpp"
#include "server/routes/metrics_source.hpp"

namespace cairn {
namespace {

void give_back(Service& service, const std::string& allocator) {
  if (service.manager.give_back_cached(allocator)) return;
  if (service.scheduler.give_back_cached(allocator)) return;
  if (const http::HttpServer* server = service.http.load()) server->give_back_cached(allocator);
}

}  // namespace

bool PoolWatch::has_reaction() const {
  return std::ranges::any_of(config_.reactions, [](const PressureReaction& reaction) {
    return reaction.kind != PressureReaction::Kind::none;
  });
}

void PoolWatch::look(Service& service) {
  if (!has_reaction()) return;
  for (const NamedAllocator& pool : pools_of(service)) {
    PoolGauge& gauge = gauges_.try_emplace(pool.allocator, config_).first->second;
    const auto crossing = gauge.update(pool.now);
    if (!crossing) continue;
    if (crossing->callback) {
      log_.warning("pressure", {{"pool", pool.allocator},
                                {"from", to_string(crossing->from)},
                                {"to", to_string(crossing->to)}});
    }
    if (!crossing->shrink) continue;
    // If the queue is full, the next change of level tries again.
    static_cast<void>(service.admin.try_post(
        [&service, allocator = pool.allocator] { give_back(service, allocator); }));
  }
}

}  // namespace cairn

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/task_threads.hpp"
#include "blockmgr/block_manager.hpp"
#include "blockmgr/shared/shared_tiers.hpp"
#include "memory/device_runtime.hpp"
#include "metrics/http_counters.hpp"
#include "server/auth/caller.hpp"
#include "server/auth/gate.hpp"
#include "server/auth/site_gate.hpp"
#include "server/config/api_limits.hpp"
#include "server/config/cache_catalog.hpp"
#include "server/config/unmade_caches.hpp"
#include "server/events/event_streams.hpp"
#include "server/http/http_server.hpp"
#include "server/http/message.hpp"
#include "server/routes/readiness.hpp"
#include "server/routes/reply.hpp"
#include "server/routes/traffic_history.hpp"
#include "server/routes/transfer_waits.hpp"
#include "server/routing/router.hpp"
#include "transport/engine/transfer_engine.hpp"

namespace cairn {

// What the routes work on. Borrows everything; lives as long as the server.
struct Service {
  BlockManager& manager;
  DeviceRuntime& runtime;
  TransferEngine& engine;
  const Clock& clock;
  Logger& log;
  const MemoryReserve& reserve;
  TransferWaits& waits;
  EventStreams& events;
  TaskThreads& readers;   // long texts: metrics, lists
  TaskThreads& admin;     // what waits for memory and files: caches made and dropped
  CacheCatalog& catalog;  // used on `admin` only
  UnmadeCaches& unmade;   // of the start
  HttpCounters& counters;
  const TrafficHistory& history;
  const SiteGate& sites;
  Gate* gate = nullptr;           // null: everybody may do everything
  SharedTiers* shared = nullptr;  // null: there is no shared store
  ApiLimits limits;
  std::string runtime_fallback = {};  // why no GPU is used although there is one; empty: not so
  std::int64_t started_at_unix_ms = 0;
  std::atomic<const http::HttpServer*> http{nullptr};  // null until it listens
  std::atomic<Phase> phase{Phase::starting};

  http::HttpServerStats http_stats() const {
    const http::HttpServer* server = http.load();
    return server == nullptr ? http::HttpServerStats{} : server->stats();
  }
};

// A request as the routes see it, from its head to its end. Its views are those of the HTTP
// machinery: what is needed after the handler has returned is copied, as the client may go at any
// time.
struct Call {
  const http::RequestHead& head;
  PathParameters path;  // {cache} comes first where there is one
  ReplyStyle style = {};
  std::shared_ptr<const Caller> caller = {};  // null: anybody
  // Held by the connection that it came over, until that has ended; null: none, only in tests.
  const std::shared_ptr<AgentConnection>* connection = nullptr;
  std::span<const std::byte> body = {};
  PassedFiles files = {};      // open files that came along, where the route takes them
  bool files_refused = false;  // some more did, and there was no room for them

  // What the caller stores counts there; null: nowhere.
  std::shared_ptr<BlockQuota> quota() const {
    return caller == nullptr ? nullptr : caller->quota();
  }
  // What the caller's leases hold counts there; null: nowhere.
  std::shared_ptr<LeaseQuota> pins() const { return caller == nullptr ? nullptr : caller->pins(); }
  // The host memory that the caller registers counts there; null: nowhere.
  std::shared_ptr<MemoryQuota> registered() const {
    return caller == nullptr ? nullptr : caller->registered();
  }
  // Under whose name a lease is listed.
  LeaseHolder holder() const { return caller == nullptr ? nullptr : caller->holder(); }
  bool is_admin() const { return caller == nullptr || caller->may(Role::admin); }
  // Of a cache that is not named in the path: that one is checked before the handler runs.
  bool may_touch(std::string_view cache) const {
    return caller == nullptr || caller->may_touch(cache);
  }
};

}  // namespace cairn

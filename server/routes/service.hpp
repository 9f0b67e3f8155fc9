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
#include "blockmgr/remote_tier/remote_tiers.hpp"
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
#include "server/tracing/tracer.hpp"
#include "transport/transfer/transfer_scheduler.hpp"

namespace cairn {

// What the routes use. Borrows everything; lives as long as the server.
struct Service {
  BlockManager& manager;
  DeviceRuntime& runtime;
  TransferScheduler& scheduler;
  const Clock& clock;
  Logger& log;
  const MemoryReserve& reserve;
  TransferWaits& waits;
  EventStreams& events;
  TaskThreads& readers;   // for long texts: metrics, lists
  TaskThreads& admin;     // for work that waits for memory or files: making and dropping caches
  CacheCatalog& catalog;  // used on `admin` only
  UnmadeCaches& unmade;   // caches that the start could not make
  HttpCounters& counters;
  const TrafficHistory& history;
  const SiteGate& sites;
  Gate* gate = nullptr;           // null: every caller may do everything
  RemoteTiers* shared = nullptr;  // null: there is no shared store
  Tracer* tracer = nullptr;       // null: no request is traced
  ApiLimits limits;
  PressureConfig pool_pressure = {};
  std::string runtime_fallback = {};  // why a present GPU is not used; else empty
  std::int64_t started_at_unix_ms = 0;
  std::atomic<const http::HttpServer*> http{nullptr};  // null until it listens
  std::atomic<Phase> phase{Phase::starting};

  http::HttpServerStats http_stats() const {
    const http::HttpServer* server = http.load();
    return server == nullptr ? http::HttpServerStats{} : server->stats();
  }
};

// A request as the routes see it. Its views belong to the HTTP layer. A handler must copy what it
// needs after it returns, because the client may disconnect at any time.
struct Call {
  const http::RequestHead& head;
  PathParameters path;  // begins with {cache} if the route has it
  ReplyStyle style = {};
  std::shared_ptr<const Caller> caller = {};  // null: no token is needed
  // Held by the connection until it ends. Null only in tests.
  const std::shared_ptr<EngineConnection>* connection = nullptr;
  std::span<const std::byte> body = {};
  PassedFiles files = {};      // open files sent with the request, if the route takes them
  bool files_refused = false;  // more were sent, but there was no room for them
  const Span* span = nullptr;  // of the request; null only in tests

  // A part of the request in its trace. It may outlive the request.
  Span begin_span(std::string_view name) const {
    return span == nullptr ? Span() : span->child(name);
  }

  // Counts the blocks that the caller stores. Null: not counted.
  std::shared_ptr<BlockQuota> quota() const {
    return caller == nullptr ? nullptr : caller->quota();
  }
  // Counts the blocks that the caller's leases pin. Null: not counted.
  std::shared_ptr<LeaseQuota> pins() const { return caller == nullptr ? nullptr : caller->pins(); }
  // Counts the host memory that the caller registers. Null: not counted.
  std::shared_ptr<MemoryQuota> registered() const {
    return caller == nullptr ? nullptr : caller->registered();
  }
  // The holder that a lease is listed with.
  LeaseHolder holder() const { return caller == nullptr ? nullptr : caller->holder(); }
  bool is_admin() const { return caller == nullptr || caller->may(Role::admin); }
  // For a cache that the path does not name; one that it names is checked before the handler runs.
  bool may_touch(std::string_view cache) const {
    return caller == nullptr || caller->may_touch(cache);
  }
};

}  // namespace cairn

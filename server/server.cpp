#include "server/server.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "base/hex.hpp"
#include "base/random.hpp"
#include "blockmgr/index/config_check.hpp"
#include "memory/cuda/cuda_runtime.hpp"
#include "memory/gpu_presence.hpp"
#include "memory/host/host_runtime.hpp"
#include "server/api_handler.hpp"
#include "server/cache_start.hpp"
#include "server/config/data_dir.hpp"
#include "server/file_limit.hpp"
#include "server/offload_at_stop.hpp"
#include "server/pool_watch.hpp"
#include "server/routes/metrics_source.hpp"
#include "server/routes/warnings.hpp"
#include "server/ticker.hpp"
#include "server/tracing/tracer.hpp"
#include "transport/s3/s3_bucket.hpp"
#include "transport/s3/s3_store.hpp"
#include "transport/store/http_peers.hpp"
#include "transport/store/redis_store.hpp"
#include "transport/store/wire.hpp"

namespace cairn {
namespace {

// Leases and TTLs end at most this late.
constexpr std::chrono::milliseconds kTickPeriod{20};
// Reading the pools takes each cache's lock.
constexpr std::chrono::milliseconds kPoolPeriod{100};
// The log does not show warnings that end before the next check.
constexpr std::chrono::milliseconds kWarningPeriod{250};
// Memory taken by a burst of long bodies is freed after one to two periods.
constexpr std::chrono::seconds kIdleMemoryPeriod{10};
// Failed work of the start is retried at most this often.
constexpr std::chrono::seconds kRetryPeriod{1};
// Scrapes, lists and changes of caches that wait for a thread. Each is a request on a connection.
constexpr std::size_t kMaxQueuedTasks = 256;

struct ChosenRuntime {
  std::unique_ptr<DeviceRuntime> runtime;
  std::string fallback;  // why the host runtime is used although there is a GPU; else empty
};

// Why a present GPU is not used; nullopt if there is none, or it was hidden from CUDA.
std::optional<std::string> unused_gpu(const Error& no_cuda) {
  if (no_cuda.code == ErrorCode::device_error) return no_cuda.detail;
  const auto gpu = find_gpu();
  if (!gpu || std::getenv("CUDA_VISIBLE_DEVICES") != nullptr) return std::nullopt;
  return *gpu + "; " + no_cuda.detail;
}

Result<ChosenRuntime> make_runtime(const Settings& settings, Logger& log) {
  std::string fallback;
  if (settings.runtime != RuntimeChoice::host) {
    auto cuda = make_cuda_runtime();
    if (cuda) {
      for (const LeftOutDevice& device : (*cuda)->left_out()) {
        log.warning("a device is left out; the others are used", {{"why", device.why}});
      }
      return ChosenRuntime{std::move(*cuda), {}};
    }
    if (settings.runtime == RuntimeChoice::cuda) return std::move(cuda).error();
    if (auto unused = unused_gpu(cuda.error())) {
      log.warning("there is a GPU, and it is not used: the host runtime stands in for it",
                  {{"why", *unused}});
      fallback = std::move(*unused);
    } else {
      log.info("no CUDA device; the host runtime is used", {{"why", cuda.error().detail}});
    }
  }
  auto host = make_host_runtime(settings.host);
  if (!host) return std::move(host).error();
  return ChosenRuntime{std::move(*host), std::move(fallback)};
}

Result<std::unique_ptr<DiskIo>> make_disk(const Settings& settings, Logger& log) {
  std::string why = "the settings say so";
  if (settings.disk_engine != DiskEngine::threads) {
    auto uring = make_uring_disk_io(settings.uring);
    if (uring || settings.disk_engine == DiskEngine::io_uring) {
      if (uring) log.info("disk engine", {{"engine", "io_uring"}, {"depth", settings.uring.depth}});
      return uring;
    }
    why = uring.error().detail;
  }
  log.info("disk engine", {{"engine", "threads"}, {"why", why}});
  return make_positional_disk_io(settings.transfers.workers + settings.transfers.disk_threads);
}

// Kills the process when it reaches a place for the n-th time: "PLACE" or "PLACE:N".
std::function<void(std::string_view)> crash_at(const std::string& where) {
  if (where.empty()) return [](std::string_view) {};
  const auto colon = where.find(':');
  const std::uint64_t times =
      colon == std::string::npos ? 1 : std::strtoull(where.c_str() + colon + 1, nullptr, 10);
  return [place = where.substr(0, colon), times,
          count = std::make_shared<std::atomic<std::uint64_t>>(0)](std::string_view reached) {
    if (reached == place && ++*count == times) std::raise(SIGKILL);
  };
}

BlockManagerOptions block_options(const Settings& settings, DataDir& data_dir, Logger& log) {
  BlockManagerOptions options = settings.blocks;
  options.disk.check_folder = [&data_dir, may_be_new = options.disk.replace_other_shape](
                                  const std::filesystem::path& folder) {
    return data_dir.use_folder({.path = folder, .may_be_new = may_be_new});
  };
  options.failpoint = crash_at(settings.crash_at);
  options.on_pressure = [&log](const PressureEvent& event) {
    log.warning("pressure", {{"cache", event.cache},
                             {"tier", to_string(event.tier)},
                             {"from", to_string(event.from)},
                             {"to", to_string(event.to)}});
  };
  return options;
}

// The server's names, according to the settings.
std::vector<std::string> own_names(const Settings& settings) {
  std::vector<std::string> names = settings.allowed_hosts;
  names.push_back(settings.listen.host);
  if (!settings.advertise.empty()) {
    if (auto url = read_peer_url(settings.advertise)) names.push_back(url->address.host);
  }
  return names;
}

// The host's name and a random number for this start of the server.
std::string own_instance() {
  std::array<char, 65> name{};
  ::gethostname(name.data(), name.size() - 1);
  const std::uint64_t number = RandomBytes().next_u64();
  return std::string(name.data()) + "/" + to_hex(std::as_bytes(std::span(&number, 1)));
}

// How other servers reach this one, which listens on `port`. Unknown if it listens on all addresses
// without an advertised URL; then no cache needs it.
RemoteAddress own_address(const Settings& settings, std::uint16_t port) {
  RemoteAddress own{.url = settings.advertise,
                    .host = this_host(),
                    .unix_path = settings.listen.unix_path.empty()
                                     ? ""
                                     : std::filesystem::absolute(settings.listen.unix_path),
                    .instance = own_instance()};
  if (own.url.empty()) {
    const bool tls = !settings.tls.certificate.empty();
    own.url = (tls ? "https://" : "http://") +
              WireAddress{.host = settings.listen.host, .port = port}.text();
  }
  return own;
}

// The same after a restart, and of no other server: 16 hex digits.
std::string writer_name(const Settings& settings) {
  const std::string self =
      this_host() + ":" + std::filesystem::absolute(settings.data_dir).string();
  const std::uint64_t number = hash_bytes(std::as_bytes(std::span(self)), 0);
  return to_hex(std::as_bytes(std::span(&number, 1)));
}

Result<RemoteTiers::Beyond> make_remote(const Settings& settings) {
  RemoteTiers::Beyond beyond;
  if (settings.shared) {
    auto store = make_redis_store(*settings.shared);
    if (!store) return std::move(store).error();
    beyond.stores[static_cast<std::size_t>(RemoteTierConfig::Store::redis)] = std::move(*store);
  }
  if (settings.s3) {
    S3Settings s3 = *settings.s3;
    s3.writer = writer_name(settings);
    auto store = make_s3_store(std::move(s3));
    if (!store) return std::move(store).error();
    beyond.stores[static_cast<std::size_t>(RemoteTierConfig::Store::s3)] = std::move(*store);
  }
  auto peers = make_http_peers(settings.peers);
  if (!peers) return std::move(peers).error();
  beyond.peers = std::move(*peers);
  return beyond;
}

// Null without an endpoint, which read_settings() has checked.
std::unique_ptr<Tracer> make_tracer(const Settings& settings, const Clock& clock, Logger& log) {
  auto target = read_trace_target(settings.tracing.otlp_endpoint);
  if (!target) return nullptr;
  log.info("requests are traced",
           {{"endpoint", settings.tracing.otlp_endpoint}, {"sample", settings.tracing.sample}});
  return std::make_unique<Tracer>(Tracer::Options{.target = std::move(*target),
                                                  .sample = settings.tracing.sample,
                                                  .instance = own_instance()},
                                  clock, log);
}

// Access control, and how the server identifies itself.
struct Guard {
  std::unique_ptr<Gate> gate;              // null: anyone
  std::unique_ptr<http::TlsIdentity> tls;  // null: plain HTTP
};

Result<Guard> make_guard(const Settings& settings, const Clock& clock) {
  Guard guard;
  if (!settings.tokens_path.empty()) {
    auto gate = Gate::open(settings.tokens_path, clock, settings.max_leased_blocks_per_token);
    if (!gate) return std::move(gate).error();
    guard.gate = std::move(*gate);
  }
  if (!settings.tls.certificate.empty()) {
    auto tls = http::TlsIdentity::load(settings.tls);
    if (!tls) return std::move(tls).error();
    guard.tls = std::move(*tls);
  }
  return guard;
}

}  // namespace

// In the order of construction: each part uses those before it.
struct Server::Parts {
  Parts(const Settings& given, const Clock& time, Logger& logger, DataDir dir,
        std::unique_ptr<DeviceRuntime> devices, std::unique_ptr<DiskIo> disk_io, Guard given_guard,
        RemoteTiers::Beyond beyond)
      : settings(given),
        log(logger),
        data_dir(std::move(dir)),
        sites(own_names(settings)),
        guard(std::move(given_guard)),
        tracer(make_tracer(settings, time, logger)),
        runtime(std::move(devices)),
        disk(std::move(disk_io)),
        scheduler(*runtime, *disk, time, settings.transfers),
        manager(*runtime, scheduler, time, logger, block_options(settings, data_dir, logger),
                settings.groups),
        shared(beyond.is_empty()
                   ? nullptr
                   : std::make_unique<RemoteTiers>(manager, std::move(beyond), time,
                                                   scheduler.executor(), settings.remote_tier)),
        catalog(given.data_dir, manager, logger),
        start({.manager = manager,
               .catalog = catalog,
               .unmade = unmade,
               .shared = shared.get(),
               .log = logger}),
        counters(ApiHandler::route_labels(), ApiHandler::method_labels()),
        history(time),
        waits(manager),
        // Streams get half of the connections; the rest are for requests.
        events(manager, time, std::max<std::uint32_t>(settings.http.max_connections / 2, 1)),
        readers({.name = "readers", .max_queued = kMaxQueuedTasks}),
        admin({.name = "admin", .max_queued = kMaxQueuedTasks}),
        service{.manager = manager,
                .runtime = *runtime,
                .scheduler = scheduler,
                .clock = time,
                .log = logger,
                .reserve = reserve,
                .waits = waits,
                .events = events,
                .readers = readers,
                .admin = admin,
                .catalog = catalog,
                .unmade = unmade,
                .counters = counters,
                .history = history,
                .sites = sites,
                .gate = guard.gate.get(),
                .shared = shared.get(),
                .tracer = tracer.get(),
                .limits = settings.api,
                .pool_pressure = settings.pool_pressure,
                .started_at_unix_ms = time.unix_ms()},
        handler(service),
        ticker("tick", kTickPeriod, [this] { tick(); }),
        event_ticker("events", EventStreams::kPollPeriod,
                     [this] {
                       events.poll();
                       if (shared) shared->poll();
                       log_warnings();
                     }),
        reuse_ticker("reuse", kTickPeriod, [this] { manager.follow_reuse(); }) {}

  void tick() {
    log.report_left_out();
    look_after_memory();
    manager.tick();
    if (service.clock.now() >= next_pools) {
      next_pools = service.clock.now() + kPoolPeriod;
      pools.look(service);
    }
    ticked.store(true, std::memory_order_relaxed);
  }

  void log_warnings() {
    if (service.phase != Phase::serving || service.clock.now() < next_warnings) return;
    next_warnings = service.clock.now() + kWarningPeriod;
    warnings.look(warnings_of(service));
  }

  void retry_caches() {
    if (!wants_retry.exchange(false)) return;
    if (!admin.try_post([this] { wants_retry = start.retry(); })) wants_retry = true;
  }

  void look_after_memory() {
    if (!reserve.is_short()) return;
    if (!std::exchange(logged_shortage, true)) {
      log.error("memory is short: requests in progress can finish, new ones are refused");
    }
    if (!reserve.refill()) return;
    log.warning("there is memory again");
    logged_shortage = false;
  }

  // Stops requests first, then what serves them, so that nothing is used after its end.
  ~Parts() {
    retry_ticker.reset();
    if (http) http->drain(0);
    waits.flush();
    if (shared) shared->end();
    readers.stop();
    admin.stop();
  }

  const Settings settings;
  Logger& log;
  MemoryReserve reserve;
  DataDir data_dir;
  const SiteGate sites;
  Guard guard;
  std::unique_ptr<Tracer> tracer;  // null: no request is traced
  std::unique_ptr<DeviceRuntime> runtime;
  std::unique_ptr<DiskIo> disk;
  TransferScheduler scheduler;
  BlockManager manager;
  std::unique_ptr<RemoteTiers> shared;  // null: no shared store
  CacheCatalog catalog;
  UnmadeCaches unmade;
  CacheStart start;
  HttpCounters counters;
  TrafficHistory history;
  TransferWaits waits;
  EventStreams events;
  TaskThreads readers;
  TaskThreads admin;
  Service service;
  ApiHandler handler;
  bool logged_shortage = false;                  // used by the ticker
  PoolWatch pools{settings.pool_pressure, log};  // used by the ticker
  TimePoint next_pools;                          // used by the ticker
  WarningLog warnings{log};                      // used by the event ticker
  TimePoint next_warnings;                       // used by the event ticker
  std::atomic<bool> ticked{false};
  std::unique_ptr<ZmqPublisher> publisher;  // null: none configured
  std::unique_ptr<http::HttpServer> http;   // its memory is looked at by the ticker
  Ticker ticker;
  Ticker event_ticker;
  Ticker reuse_ticker;
  std::optional<Ticker> memory_ticker;
  std::optional<Ticker> history_ticker;
  std::atomic<bool> wants_retry{false};
  std::optional<Ticker> retry_ticker;
};

Result<> check_startable(const Settings& settings, const Clock& clock) {
  CAIRN_TRY(http::check_listen(settings.listen));
  CAIRN_TRY(DataDir::check(settings.data_dir));
  if (auto guard = make_guard(settings, clock); !guard) return std::move(guard).error();
  if (settings.shared && settings.shared->tls) {
    CAIRN_TRY(make_wire_tls(settings.shared->tls_files));
  }
  if (settings.shared || settings.s3) CAIRN_TRY(make_wire_tls(settings.peers.tls));
  if (settings.s3) {
    CAIRN_TRY(check_keys(*settings.s3));
  }
  for (const CacheConfig& cache : settings.caches) {
    if (auto fits = check_config(cache, settings.blocks); !fits) {
      return Error{fits.error().code, "cache '" + cache.name + "': " + fits.error().detail};
    }
  }
  return {};
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(const Settings& settings, const Clock& clock,
                                              Logger& log) {
  auto guard = make_guard(settings, clock);
  if (!guard) return std::move(guard).error();
  auto data_dir =
      DataDir::open({.path = settings.data_dir, .must_be_known = settings.known_data_dir}, log);
  if (!data_dir) return std::move(data_dir).error();
  auto runtime = make_runtime(settings, log);
  if (!runtime) return std::move(runtime).error();
  auto disk = make_disk(settings, log);
  if (!disk) return std::move(disk).error();
  RemoteTiers::Beyond beyond;
  if (settings.shared || settings.s3) {
    auto made = make_remote(settings);
    if (!made) return std::move(made).error();
    beyond = std::move(*made);
  }
  auto parts = std::make_unique<Parts>(settings, clock, log, std::move(*data_dir),
                                       std::move(runtime->runtime), std::move(*disk),
                                       std::move(*guard), std::move(beyond));
  Service& service = parts->service;
  service.runtime_fallback = std::move(runtime->fallback);

  http::ListenConfig listen = settings.listen;
  listen.tls = parts->guard.tls.get();
  http::HttpLimits limits = settings.http;
  const std::uint64_t max_files = raise_file_limit();
  const bool has_unix = !listen.unix_path.empty();
  const HttpFiles files =
      http_files_within(max_files, {.connections = limits.max_connections,
                                    .unix_connections = has_unix ? limits.max_unix_connections : 0,
                                    .passed_files = has_unix ? limits.max_passed_files : 0});
  limits.max_connections = files.connections;
  limits.max_unix_connections = files.unix_connections;
  limits.max_passed_files = files.passed_files;
  if (limits.max_connections < settings.http.max_connections) {
    log.warning("fewer connections than max_connections: the limit of open files is low",
                {{"connections", limits.max_connections},
                 {"max_connections", settings.http.max_connections},
                 {"open_files", max_files}});
  }
  auto http = http::HttpServer::start(listen, limits, parts->handler, clock, log);
  if (!http) return std::move(http).error();
  parts->http = std::move(*http);
  service.http = parts->http.get();
  if (parts->shared) parts->shared->advertise(own_address(settings, parts->http->port()));
  parts->memory_ticker.emplace("idle memory", kIdleMemoryPeriod,
                               [&server = *parts->http] { server.trim_idle(); });
  parts->history_ticker.emplace("history", TrafficHistory::kPeriod, [&parts = *parts] {
    if (parts.history.is_due()) parts.history.add(traffic_counts(parts.service));
  });

  CAIRN_TRY(parts->start.make_all(settings.caches));
  for (const RestoreSetting& restore : settings.restore) {
    CAIRN_TRY(restore_at_start(parts->manager, restore, log));
  }
  if (!settings.zmq.endpoint.empty()) {
    auto publisher = ZmqPublisher::start(settings.zmq, parts->manager, clock, log);
    if (!publisher) return std::move(publisher).error();
    parts->publisher = std::move(*publisher);
    log.info("events are published", {{"endpoint", parts->publisher->endpoint()}});
  }
  parts->wants_retry = parts->start.has_work();
  parts->retry_ticker.emplace("caches", kRetryPeriod,
                              [&retried = *parts] { retried.retry_caches(); });
  service.phase = Phase::serving;
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

std::uint16_t Server::port() const { return parts_->http->port(); }

void Server::reload() {
  Guard& guard = parts_->guard;
  Logger& log = parts_->service.log;
  if (guard.gate != nullptr) {
    const auto tokens = guard.gate->reload();
    if (tokens) {
      log.info("tokens read again", {{"tokens", *tokens}});
    } else {
      log.error("the tokens stay as they were", {{"reason", tokens.error().detail}});
    }
  }
  if (guard.tls != nullptr) {
    if (auto read = guard.tls->reload(); read) {
      log.info("certificate read again");
    } else {
      log.error("the certificate stays as it was", {{"reason", read.error().detail}});
    }
  }
}

bool Server::is_alive() {
  const bool ticked = parts_->ticked.exchange(false, std::memory_order_relaxed);
  return parts_->http->is_alive() && ticked;
}

bool Server::drain() {
  if (parts_->settings.drain_delay_ms > 0) {
    parts_->service.phase = Phase::leaving;
    std::this_thread::sleep_for(std::chrono::milliseconds(parts_->settings.drain_delay_ms));
  }
  parts_->service.phase = Phase::draining;
  // Requests that wait for a transfer get its progress.
  parts_->waits.flush();
  parts_->events.end();
  const bool drained = parts_->http->drain(parts_->settings.drain_timeout_ms);
  if (parts_->settings.offload_at_stop) {
    bring_memory_to_disk(parts_->manager, parts_->service.log);
  }
  return drained;
}

}  // namespace cairn

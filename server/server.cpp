#include "server/server.hpp"

#include <chrono>
#include <optional>

#include "server/api_handler.hpp"
#include "server/config/data_dir.hpp"
#include "server/ticker.hpp"

namespace cairn {
namespace {

// Leases and times to live end this much late at worst.
constexpr std::chrono::milliseconds kTickPeriod{20};
// Scrapes, lists and changes of caches that wait their turn; each is a request on a connection.
constexpr std::size_t kMaxQueuedTasks = 256;

Result<std::unique_ptr<DeviceRuntime>> make_runtime(const Settings& settings, Logger& log) {
  if (settings.runtime != RuntimeChoice::host) {
    auto cuda = make_cuda_runtime();
    if (cuda || settings.runtime == RuntimeChoice::cuda) return cuda;
    log.info("no CUDA device; the host runtime is used", {{"why", cuda.error().detail}});
  }
  return make_host_runtime(settings.host);
}

BlockManagerOptions block_options(const Settings& settings, Logger& log) {
  BlockManagerOptions options = settings.blocks;
  options.on_pressure = [&log](const PressureEvent& event) {
    log.warning("pressure", {{"cache", event.cache},
                             {"tier", to_string(event.tier)},
                             {"from", to_string(event.from)},
                             {"to", to_string(event.to)}});
  };
  return options;
}

// Who may come in, and how the server shows who it is.
struct Guard {
  std::unique_ptr<Gate> gate;              // null: everybody
  std::unique_ptr<http::TlsIdentity> tls;  // null: plain HTTP
};

Result<Guard> make_guard(const Settings& settings, const Clock& clock) {
  Guard guard;
  if (!settings.tokens_path.empty()) {
    auto gate = Gate::open(settings.tokens_path, clock);
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

// In the order in which they are made: each uses those before it.
struct Server::Parts {
  Parts(const Settings& given, const Clock& time, Logger& logger, DataDir dir,
        std::unique_ptr<DeviceRuntime> devices, Guard given_guard)
      : settings(given),
        log(logger),
        data_dir(std::move(dir)),
        guard(std::move(given_guard)),
        runtime(std::move(devices)),
        disk(make_positional_disk_io()),
        engine(*runtime, *disk, time, settings.transfers),
        manager(*runtime, engine, time, logger, block_options(settings, logger)),
        counters(ApiHandler::route_labels(), ApiHandler::method_labels()),
        waits(manager),
        readers(kMaxQueuedTasks),
        admin(kMaxQueuedTasks),
        service{.manager = manager,
                .runtime = *runtime,
                .engine = engine,
                .clock = time,
                .log = logger,
                .waits = waits,
                .readers = readers,
                .admin = admin,
                .counters = counters,
                .gate = guard.gate.get(),
                .limits = settings.api,
                .started_at_unix_ms = time.unix_ms()},
        handler(service),
        ticker(kTickPeriod, [this] { tick(); }) {}

  void tick() {
    manager.tick();
    if (told_of_loss) return;
    if (const auto lost = runtime->lost()) {
      log.error("a device is lost; the tiers that are not on it are still served",
                {{"why", *lost}});
      told_of_loss = true;
    }
  }

  // First no more requests, then what works for them, so that nothing is used after it is gone.
  ~Parts() {
    if (http) http->drain(0);
    waits.flush();
    readers.stop();
    admin.stop();
  }

  const Settings settings;
  Logger& log;
  DataDir data_dir;
  Guard guard;
  std::unique_ptr<DeviceRuntime> runtime;
  std::unique_ptr<DiskIo> disk;
  TransferEngine engine;
  BlockManager manager;
  HttpCounters counters;
  TransferWaits waits;
  Worker readers;
  Worker admin;
  Service service;
  ApiHandler handler;
  bool told_of_loss = false;  // the ticker's
  Ticker ticker;
  std::unique_ptr<http::HttpServer> http;
};

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(const Settings& settings, const Clock& clock,
                                              Logger& log) {
  auto guard = make_guard(settings, clock);
  if (!guard) return std::move(guard).error();
  auto data_dir = DataDir::open(settings.data_dir);
  if (!data_dir) return std::move(data_dir).error();
  auto runtime = make_runtime(settings, log);
  if (!runtime) return std::move(runtime).error();
  auto parts = std::make_unique<Parts>(settings, clock, log, std::move(*data_dir),
                                       std::move(*runtime), std::move(*guard));
  Service& service = parts->service;

  http::ListenConfig listen = settings.listen;
  listen.tls = parts->guard.tls.get();
  auto http = http::HttpServer::start(listen, settings.http, parts->handler, clock, log);
  if (!http) return std::move(http).error();
  parts->http = std::move(*http);
  service.http = parts->http.get();

  for (const CacheConfig& cache : settings.caches) {
    auto created = parts->manager.create_cache(cache);
    if (!created) {
      return Error{created.error().code,
                   "cache '" + cache.name + "': " + std::move(created).error().detail};
    }
    log.info("cache made", {{"cache", cache.name}, {"block_bytes", created->cache->block_bytes()}});
  }
  for (const RestoreSetting& restore : settings.restore) {
    CAIRN_TRY(restore_at_start(parts->manager, restore, log));
  }
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

bool Server::drain() {
  parts_->service.phase = Phase::draining;
  // Who waits for a transfer is told how far it is.
  parts_->waits.flush();
  return parts_->http->drain(parts_->settings.drain_timeout_ms);
}

}  // namespace cairn

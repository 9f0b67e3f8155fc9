#include "blockmgr/snapshot/snapshots.hpp"

#include <algorithm>
#include <cctype>
#include <map>

#include "base/thread.hpp"
#include "blockmgr/snapshot/replacement.hpp"
#include "blockmgr/snapshot/snapshot_job.hpp"

namespace cairn {
namespace {

constexpr std::size_t kMaxNameBytes = 64;
constexpr std::string_view kSuffix = ".snapshot";

std::filesystem::path file_name(std::string_view name) {
  return std::string(name) + std::string(kSuffix);
}

// An upper bound for the data without compression that needs no walk over the blocks.
std::uint64_t max_bytes(CacheCore& core) {
  CacheLock locked(core, LockUse::upkeep);
  std::uint64_t slots = 0;
  for (Tier tier : kTiers) {
    const SlotPool& pool = locked->store.pool(tier);
    slots += pool.count(SlotState::committed) + pool.count(SlotState::evictable);
  }
  return std::min<std::uint64_t>(slots, locked->store.entry_count()) * core.block_bytes;
}

}  // namespace

struct Snapshots::Impl {
  explicit Impl(std::shared_ptr<CacheServices> shared)
      : services(std::move(shared)), io(services->options.snapshot_file_fault, &services->mapped) {}

  struct Job {
    Job(TransferTable& table, TransferId id, std::string name, std::filesystem::path path)
        : progress(table, id), cache(std::move(name)), file(std::move(path)) {}
    SnapshotProgress progress;
    const std::string cache;
    const std::filesystem::path file;
    bool ended = false;
    Thread thread;
  };
  using Jobs = std::map<TransferId, std::shared_ptr<Job>>;

  std::filesystem::path root() const { return services->options.data_dir / "snapshots"; }
  void remove_leftovers();
  Result<> check_idle(const std::string& cache) const CAIRN_REQUIRES(mutex);
  struct Task {
    std::shared_ptr<Cache> cache;
    std::filesystem::path file;
    std::uint64_t blocks_total = 0;
    UniqueFunction<Result<>(SnapshotProgress&)> work;
  };
  Result<TransferId> start(Task task);
  void run(const std::shared_ptr<Job>& job, Task task);
  void join_ended();

  const std::shared_ptr<CacheServices> services;
  const SnapshotIo io;
  Mutex mutex;
  Jobs jobs CAIRN_GUARDED_BY(mutex);  // until they are joined
};

Snapshots::Snapshots(std::shared_ptr<CacheServices> services)
    : impl_(std::make_unique<Impl>(std::move(services))) {
  impl_->remove_leftovers();
}

Snapshots::~Snapshots() {
  Impl::Jobs jobs;
  {
    MutexLock lock(impl_->mutex);
    jobs = impl_->jobs;
  }
  for (const auto& [id, job] : jobs) job->progress.stop();
  for (const auto& [id, job] : jobs) job->thread.join();
}

// Removes what a crash left. No other program writes below a data directory in use.
void Snapshots::Impl::remove_leftovers() {
  const auto caches = io.names(root());
  if (!caches) return;
  for (const std::string& cache : *caches) {
    const auto files = io.names(root() / cache);
    if (!files) continue;
    for (const std::string& file : *files) {
      if (!file.ends_with(kPartialSuffix)) continue;
      const auto removed = io.remove(root() / cache / file);
      services->log.warning("an unfinished snapshot was removed",
                            {{"cache", cache}, {"file", file}, {"ok", removed.has_value()}});
    }
  }
}

Result<> Snapshots::Impl::check_idle(const std::string& cache) const {
  std::size_t running = 0;
  for (const auto& [id, job] : jobs) {
    if (job->ended) continue;
    ++running;
    if (job->cache == cache) {
      return Error{ErrorCode::state_conflict,
                   "another snapshot of cache " + cache + " is being made or restored"};
    }
  }
  if (running < services->options.max_snapshot_jobs) return {};
  return Error{ErrorCode::queue_full, std::to_string(running) +
                                          " snapshots are being made or restored, which is the "
                                          "limit"};
}

void Snapshots::Impl::join_ended() {
  std::vector<std::shared_ptr<Job>> ended;
  {
    MutexLock lock(mutex);
    for (auto at = jobs.begin(); at != jobs.end();) {
      if (at->second->ended) ended.push_back(at->second);
      at = at->second->ended ? jobs.erase(at) : std::next(at);
    }
  }
  for (const auto& job : ended) job->thread.join();
}

Result<TransferId> Snapshots::Impl::start(Task task) {
  join_ended();
  MutexLock lock(mutex);
  CAIRN_TRY(check_idle(task.cache->config().name));
  auto id = task.cache->core()->open_transfer(task.blocks_total);
  if (!id) return id;
  auto job = std::make_shared<Job>(services->transfers, *id, task.cache->config().name, task.file);
  // The thread waits for this lock before it reports its end.
  auto thread =
      Thread::start("snapshot", [this, job, task = std::move(task)](
                                    const std::stop_token&) mutable { run(job, std::move(task)); });
  if (!thread) {
    services->transfers.set_error(*id, thread.error());
    services->transfers.end(*id, TransferState::failed);
    return std::move(thread).error();
  }
  job->thread = std::move(*thread);
  jobs.emplace(*id, job);
  return *id;
}

void Snapshots::Impl::run(const std::shared_ptr<Job>& job, Task task) {
  const TransferId id = job->progress.id();
  services->transfers.begin(id);
  Result<> done = Error{ErrorCode::no_capacity, "there was no memory for the snapshot"};
  guarded("snapshot", [&] { done = task.work(job->progress); });
  TransferState state = TransferState::done;
  if (!done) {
    const Error& error = done.error();
    const bool cancelled = error.code == ErrorCode::cancelled;
    state = cancelled ? TransferState::cancelled : TransferState::failed;
    if (!cancelled) {
      services->log.warning("a snapshot failed", {{"cache", job->cache},
                                                  {"file", job->file.string()},
                                                  {"code", to_string(error.code)},
                                                  {"detail", error.detail}});
      services->transfers.set_error(id, error);
    }
  }
  task = {};  // closes the file and releases the cache before anyone hears of the end
  {
    MutexLock lock(mutex);
    job->ended = true;
  }
  services->transfers.end(id, state);
}

Result<std::filesystem::path> Snapshots::file_of(std::string_view cache,
                                                 std::string_view name) const {
  const bool fine = !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != ".." &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
                    });
  if (fine) return impl_->root() / std::string(cache) / file_name(name);
  return Error{ErrorCode::out_of_range,
               "a snapshot's name is 1 to 64 letters, digits, '.', '_' or '-', and not . or .."};
}

Result<TransferId> Snapshots::make(const std::shared_ptr<Cache>& cache,
                                   const MakeRequest& request) {
  const std::string& cache_name = cache->config().name;
  auto file = file_of(cache_name, request.name);
  if (!file) return std::move(file).error();
  const auto folder = file->parent_path();
  CAIRN_TRY(impl_->io.make_folders(impl_->services->options.data_dir,
                                   std::filesystem::path("snapshots") / cache_name));
  const auto names = impl_->io.names(folder);
  if (!names) return names.error();
  if (std::binary_search(names->begin(), names->end(), file->filename().string())) {
    return Error{ErrorCode::state_conflict,
                 "cache " + cache_name + " has a snapshot " + request.name};
  }
  if (names->size() >= impl_->services->options.max_snapshots) {
    return Error{ErrorCode::too_many, std::to_string(names->size()) +
                                          " snapshots of the cache exist, which is the limit"};
  }
  if (!request.compress) {
    const auto free = impl_->io.free_bytes(folder);
    if (!free) return free.error();
    const std::uint64_t needed = max_bytes(*cache->core());
    if (needed > *free) {
      return Error{ErrorCode::no_capacity, "the snapshot needs " + std::to_string(needed) +
                                               " bytes of disk; " + std::to_string(*free) +
                                               " are free"};
    }
  }
  const SnapshotHeader header{.config = cache->config(),
                              .compressed = request.compress,
                              .created_unix_ms = impl_->services->clock.unix_ms()};
  return impl_->start({.cache = cache,
                       .file = *file,
                       .work = [this, cache, path = *file, header](SnapshotProgress& progress) {
                         auto writer = SnapshotWriter::begin(impl_->io, path, header);
                         if (!writer) return Result<>(std::move(writer).error());
                         auto saved = save_blocks(*cache->core(), *cache, **writer, progress);
                         if (!saved) return saved;
                         auto finished = (*writer)->finish();
                         return finished ? Result<>() : Result<>(std::move(finished).error());
                       }});
}

Result<TransferId> Snapshots::restore(const std::shared_ptr<Cache>& cache,
                                      const RestoreRequest& request) {
  auto reader = SnapshotReader::open(impl_->io, request.file);
  if (!reader) return std::move(reader).error();
  const auto named = [&](const Error& error) {
    return Error{error.code, "snapshot " + request.file.filename().string() + ": " + error.detail};
  };
  if (auto loaded = (*reader)->load_index(); !loaded) return named(loaded.error());
  if (request.replace) {
    auto planned = plan_replacement(*cache->core(), **reader);
    if (!planned) return named(planned.error());
    if (planned->placed < planned->wanted && !request.partial) {
      return Error{ErrorCode::no_capacity,
                   "the snapshot has " + std::to_string(planned->wanted) + " blocks; cache " +
                       cache->config().name + " has room for the first " +
                       std::to_string(planned->placed) + " even when it is empty"};
    }
    CAIRN_TRY(check_unleased(*cache->core()));
    const std::uint64_t total = planned->placed;
    return impl_->start(
        {.cache = cache,
         .file = request.file,
         .blocks_total = total,
         .work = [cache, shared = std::shared_ptr<SnapshotReader>(std::move(*reader)),
                  planned = std::move(*planned)](SnapshotProgress& progress) {
           return replace_blocks(cache, *shared, planned, progress);
         }});
  }
  const auto found = fit(*cache->core(), *cache, **reader);
  if (!found) return named(found.error());
  if (found->missing > found->room && !request.partial) {
    return Error{ErrorCode::no_capacity, "the snapshot has " + std::to_string(found->missing) +
                                             " blocks that are not in cache " +
                                             cache->config().name + ", which has " +
                                             std::to_string(found->room) + " free ones"};
  }
  auto shared = std::shared_ptr<SnapshotReader>(std::move(*reader));
  return impl_->start(
      {.cache = cache,
       .file = request.file,
       .blocks_total = found->wanted,
       .work = [cache, shared, partial = request.partial](SnapshotProgress& progress) {
         return load_blocks(cache, *shared, partial, progress);
       }});
}

Result<std::vector<SnapshotInfo>> Snapshots::list(std::string_view cache, bool cache_exists) const {
  const auto folder = impl_->root() / std::string(cache);
  const auto files = impl_->io.names(folder);
  if (!files) return files.error();
  std::vector<SnapshotInfo> infos;
  for (const std::string& file : *files) {
    if (!file.ends_with(kSuffix)) continue;
    SnapshotInfo info{.name = file.substr(0, file.size() - kSuffix.size())};
    auto reader = SnapshotReader::open(impl_->io, folder / file);
    if (reader) {
      info.file_bytes = (*reader)->file_bytes();
      info.blocks = (*reader)->blocks();
      info.created_unix_ms = (*reader)->header().created_unix_ms;
      info.compressed = (*reader)->header().compressed;
    } else if (reader.error().code == ErrorCode::unknown_snapshot) {
      continue;  // removed meanwhile
    } else {
      info.broken = std::move(reader).error();
    }
    infos.push_back(std::move(info));
  }
  if (infos.empty() && !cache_exists) {
    return Error{ErrorCode::unknown_cache, "there is no cache " + std::string(cache)};
  }
  return infos;
}

Result<> Snapshots::remove(std::string_view cache, std::string_view name) {
  auto file = file_of(cache, name);
  if (!file) return std::move(file).error();
  // Under the lock, so that no job begins to read it meanwhile.
  MutexLock lock(impl_->mutex);
  for (const auto& [id, job] : impl_->jobs) {
    if (!job->ended && job->file == *file) {
      return Error{ErrorCode::state_conflict,
                   "snapshot " + std::string(name) + " is being made or restored"};
    }
  }
  auto removed = impl_->io.remove(*file);
  if (!removed) return std::move(removed).error();
  if (*removed) return impl_->io.sync_folder(file->parent_path());
  return Error{ErrorCode::unknown_snapshot,
               "cache " + std::string(cache) + " has no snapshot " + std::string(name)};
}

Result<CacheConfig> Snapshots::configuration(const std::filesystem::path& file) const {
  auto reader = SnapshotReader::open(impl_->io, file);
  if (!reader) return std::move(reader).error();
  return (*reader)->header().config;
}

bool Snapshots::cancel(TransferId id) {
  MutexLock lock(impl_->mutex);
  const auto at = impl_->jobs.find(id);
  if (at == impl_->jobs.end()) return false;
  at->second->progress.cancel();
  return true;
}

}  // namespace cairn

#include "blockmgr/engine_memory/engine_memory.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/checked.hpp"
#include "blockmgr/cache/tier_memory.hpp"
#include "blockmgr/engine_memory/engine_copy.hpp"
#include "layouts/builder.hpp"

namespace cairn {
namespace {

// Copies per agent at a time: an engine loads a prefix, and the next one while it computes.
constexpr std::size_t kMaxCopies = 256;

// CUDA maps an imported descriptor in whole units. They have this size on every current device, and
// the exported memory is a multiple of it.
constexpr std::uint64_t kDescriptorUnitBytes = 2ull << 20;

using Kind = ExportedMemory::Kind;

std::string region_name(std::size_t region) { return "regions[" + std::to_string(region) + "]"; }

Error in_region(std::size_t region, const Error& error) {
  return {error.code, region_name(region) + ": " + error.detail};
}

bool is_of_device(Kind kind) { return kind == Kind::cuda_ipc || kind == Kind::cuda_vmm_fd; }

bool is_one_file(const EngineMemoryConfig::Part& a, const EngineMemoryConfig::Part& b) {
  return a.memory.kind == b.memory.kind && a.memory.path == b.memory.path &&
         a.memory.handle == b.memory.handle && a.descriptor == b.descriptor;
}

std::uint64_t inode_of(int fd) {
  struct stat file {};
  return fd >= 0 && ::fstat(fd, &file) == 0 ? file.st_ino : 0;
}

// The mapping has its own descriptors.
EngineMemoryConfig without_files(EngineMemoryConfig config) {
  for (EngineMemoryConfig::Part& part : config.regions) part.memory.file.reset();
  return config;
}

Error ended(const EngineMemoryConfig& config) {
  return {ErrorCode::unknown_agent, "agent " + config.name + " has ended"};
}

}  // namespace

EngineMemory::EngineMemory(EngineMemoryConfig config, const EngineSources& sources,
                           const Terms& terms)
    : config_(without_files(std::move(config))),
      holder_(terms.holder),
      clock_(sources.clock),
      registry_(sources.registry),
      device_uuid_(uuid_of(sources.runtime, config_.device_id)) {
  MutexLock lock(mutex_);
  take_terms(terms);
}

EngineMemory::~EngineMemory() {
  give_memory_back();
  MutexLock lock(mutex_);
  take_terms({});
}

Result<std::shared_ptr<EngineMemory>> EngineMemory::make(EngineMemoryConfig config,
                                                         const EngineSources& sources,
                                                         Terms terms) {
  std::shared_ptr<EngineMemory> memory(new EngineMemory(config, sources, terms));
  CAIRN_TRY(memory->map(config.regions, {sources, terms.registered}));
  CAIRN_TRY(memory->build(sources));
  return memory;
}

// Regions of the same file share one mapping.
Result<> EngineMemory::map(std::span<const EngineMemoryConfig::Part> parts, const Sources& all) {
  const EngineSources& sources = all.server;
  if (device_uuid_.empty()) {
    return Error{ErrorCode::impossible,
                 "device_id is " + std::to_string(config_.device_id) + "; the " +
                     std::string(sources.runtime.name()) + " runtime has " +
                     std::to_string(sources.runtime.devices().size()) + " devices"};
  }
  file_of_region_.assign(parts.size(), SIZE_MAX);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const EngineMemoryConfig::Part& part = parts[i];
    if (!part.device_uuid.empty() && part.device_uuid != device_uuid_) {
      return Error{ErrorCode::impossible, region_name(i) + ".device_uuid is " + part.device_uuid +
                                              "; device " + std::to_string(config_.device_id) +
                                              " is " + device_uuid_};
    }
    if (file_of_region_[i] != SIZE_MAX) continue;
    ExportedMemory memory = part.memory;
    memory.device_id = is_of_device(memory.kind) ? config_.device_id : -1;
    memory.size_bytes = 0;
    for (std::size_t j = i; j < parts.size(); ++j) {
      if (!is_one_file(part, parts[j])) continue;
      memory.size_bytes = std::max(memory.size_bytes, parts[j].offset_bytes + parts[j].size_bytes);
      file_of_region_[j] = mapped_.size();
    }
    if (memory.kind == Kind::cuda_vmm_fd) {
      memory.size_bytes =
          checked_align_up(memory.size_bytes, kDescriptorUnitBytes).value_or(memory.size_bytes);
    }
    if (!is_of_device(memory.kind) && !part.descriptor) {
      if (auto allowed =
              check_import_path(region_name(i) + ".path", memory.path, sources.import_folders);
          !allowed) {
        return allowed;
      }
    }
    for (const auto& quota : {all.token, sources.registered}) {
      if (is_of_device(memory.kind)) break;
      auto counted = MemoryQuotaShare::take(quota, memory.size_bytes);
      if (!counted) return in_region(i, counted.error());
      counted_.push_back(std::move(*counted));
    }
    auto mapped = sources.runtime.import_memory(
        memory, {.kind = is_of_device(memory.kind) ? StorageKind::device : StorageKind::pinned,
                 .device_id = config_.device_id});
    if (!mapped) return in_region(i, mapped.error());
    mapped_.push_back(std::move(*mapped));
    // An open file was sealed by its sender, and GPU memory cannot be truncated.
    if (is_of_device(memory.kind) || part.descriptor) continue;
    auto guard = TornGuard::make({mapped_.back().data(), mapped_.back().size_bytes()});
    if (!guard) return in_region(i, guard.error());
    guards_.push_back(std::move(*guard));
  }
  return {};
}

Result<> EngineMemory::build(const EngineSources& sources) {
  for (std::size_t i = 0; i < config_.regions.size(); ++i) {
    const EngineMemoryConfig::Part& part = config_.regions[i];
    const Region& file = mapped_[file_of_region_[i]];
    const RegionView::Part place{part.offset_bytes, part.size_bytes};
    auto view = file.view(place);
    if (!view) return in_region(i, view.error());
    if (auto claimed = claim_exported_memory(part.memory, file.shared_fd(), {&place, 1});
        !claimed) {
      return in_region(i, claimed.error());
    }
    const RegionId id{sources.first_region + i};
    CAIRN_TRY(registry_->insert(id, *view));
    registered_.push_back(id);
  }
  auto shaped = LayoutBuilder().config(config_.shape);
  auto placed = config_.layout == LayoutKind::layer_separate
                    ? std::move(shaped).layer_separate(config_.block_dim)
                    : std::move(shaped).fully_contiguous();
  auto layout = std::move(placed).with_registered_regions(*registry_, registered_).build();
  if (!layout) return std::move(layout).error();
  layout_.emplace(std::move(*layout));
  return {};
}

void EngineMemory::give_memory_back() {
  for (const RegionId id : std::exchange(registered_, {})) {
    static_cast<void>(registry_->remove(id).has_value());
  }
  guards_.clear();
  mapped_.clear();
  counted_.clear();
}

Result<> EngineMemory::check_whole() const {
  if (std::ranges::none_of(guards_, &TornGuard::is_torn)) return {};
  return Error{ErrorCode::io_error, "a file of agent " + config_.name +
                                        " was cut off during a copy: its bytes are invalid"};
}

Result<> EngineMemory::check_same(const EngineMemoryConfig& asked) const {
  if (!(asked == config_)) {
    return Error{ErrorCode::agent_exists,
                 "agent " + config_.name + " is registered with other memory or another layout"};
  }
  for (std::size_t i = 0; i < asked.regions.size(); ++i) {
    auto same =
        check_still_exported(asked.regions[i].memory, mapped_[file_of_region_[i]].shared_fd());
    if (!same) return in_region(i, same.error());
  }
  return {};
}

Result<> EngineMemory::check_apart(const EngineMemoryConfig& asked) const {
  for (std::size_t i = 0; i < asked.regions.size(); ++i) {
    const EngineMemoryConfig::Part& part = asked.regions[i];
    if (part.memory.kind != Kind::cuda_ipc) continue;
    for (const EngineMemoryConfig::Part& mine : config_.regions) {
      if (!is_known_same(mine.memory, part.memory)) continue;
      if (part.offset_bytes >= mine.offset_bytes + mine.size_bytes ||
          mine.offset_bytes >= part.offset_bytes + part.size_bytes) {
        continue;
      }
      return Error{ErrorCode::state_conflict,
                   region_name(i) + ": agent " + config_.name + " already uses these bytes"};
    }
  }
  return {};
}

EngineMemoryInfo EngineMemory::info() const {
  EngineMemoryInfo info{.config = config_, .device_uuid = device_uuid_, .holder = holder_};
  const Geometry& geometry = layout_->geometry();
  info.region_bytes = geometry.region_bytes();
  info.block_stride_bytes = geometry.block_stride_bytes();
  info.layer_stride_bytes = geometry.layer_stride_bytes();
  info.outer_stride_bytes = geometry.outer_stride_bytes();
  MutexLock lock(mutex_);
  for (const std::size_t file : file_of_region_) {
    info.inodes.push_back(ended_ ? 0 : inode_of(mapped_[file].shared_fd()));
  }
  info.copies = uses_;
  if (!tether_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::max(expires_at_ - clock_.now(), Duration::zero()));
    info.expires_at_unix_ms = clock_.unix_ms() + left.count();
  }
  return info;
}

void EngineMemory::take_terms(const Terms& terms) {
  const auto count = [](const EngineTether& tether, int change) {
    if (!tether) return;
    if (const auto connection = tether->lock()) {
      connection->engine_memories += static_cast<std::uint32_t>(change);
    }
  };
  count(terms.tether, 1);
  count(tether_, -1);
  tether_ = terms.tether;
  lease_ms_ = terms.lease_ms;
  expires_at_ = clock_.now() + std::chrono::milliseconds(lease_ms_);
}

void EngineMemory::renew(const Terms& terms) {
  MutexLock lock(mutex_);
  take_terms(terms);
}

bool EngineMemory::is_overdue() const {
  MutexLock lock(mutex_);
  if (tether_) return tether_->expired();
  return uses_ == 0 && clock_.now() >= expires_at_;
}

Result<EngineMemory::Use> EngineMemory::use(const std::shared_ptr<EngineMemory>& memory,
                                            const std::shared_ptr<EngineCopy>& copy) {
  MutexLock lock(memory->mutex_);
  if (memory->ended_) return ended(memory->config_);
  std::erase_if(memory->copies_, [](const auto& one) { return one.expired(); });
  if (memory->uses_ >= kMaxCopies) {
    return Error{ErrorCode::queue_full, std::to_string(kMaxCopies) + " copies of agent " +
                                            memory->config_.name + " are under way"};
  }
  memory->copies_.push_back(copy);
  ++memory->uses_;
  return Use(memory);
}

void EngineMemory::Use::end() {
  const auto memory = std::move(memory_);
  if (!memory) return;
  {
    MutexLock lock(memory->mutex_);
    memory->expires_at_ = memory->clock_.now() + std::chrono::milliseconds(memory->lease_ms_);
    if (--memory->uses_ > 0 || !memory->ended_) return;
  }
  memory->let_go();
}

void EngineMemory::end(UniqueFunction<void()> gone) {
  bool is_used = false;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    take_terms({});
    gone_.push_back(std::move(gone));
    is_used = uses_ > 0;
  }
  if (!is_used) return let_go();
  for (const auto& copy : copies()) copy->cancel();
}

// Called once the agent has ended and nobody uses it, by whichever happens last.
void EngineMemory::let_go() {
  give_memory_back();
  std::vector<UniqueFunction<void()>> gone;
  {
    MutexLock lock(mutex_);
    gone = std::exchange(gone_, {});
  }
  for (auto& notify : gone) notify();
}

bool EngineMemory::cancel(TransferId id) {
  for (const auto& copy : copies()) {
    if (copy->id() != id) continue;
    copy->cancel();
    return true;
  }
  return false;
}

std::vector<std::shared_ptr<EngineCopy>> EngineMemory::copies() const {
  std::vector<std::shared_ptr<EngineCopy>> alive;
  MutexLock lock(mutex_);
  for (const auto& one : copies_) {
    if (auto copy = one.lock()) alive.push_back(std::move(copy));
  }
  return alive;
}

}  // namespace cairn

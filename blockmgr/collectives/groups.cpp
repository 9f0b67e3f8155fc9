#include "blockmgr/collectives/groups.hpp"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "blockmgr/collectives/group.hpp"

namespace cairn {
namespace {

constexpr std::string_view kPackingAllocator = "group_packing";

Error unknown(std::string_view name) {
  return {ErrorCode::unknown_group, "there is no group " + std::string(name)};
}

Result<> check_place(const GroupJoin& request, std::uint32_t max_world_size) {
  const RankPlace place = request.place;
  if (place.world_size < 1 || place.world_size > max_world_size) {
    return Error{ErrorCode::out_of_range, "world_size is " + std::to_string(place.world_size) +
                                              ", not 1 to " + std::to_string(max_world_size)};
  }
  if (place.rank >= place.world_size) {
    return Error{ErrorCode::out_of_range, "rank is " + std::to_string(place.rank) +
                                              ", not below world_size, " +
                                              std::to_string(place.world_size)};
  }
  if (place.rank > 0 && request.unique_id.empty()) {
    return Error{ErrorCode::missing_field, "unique_id is missing: rank " +
                                               std::to_string(place.rank) +
                                               " needs the one that rank 0 got"};
  }
  if (place.rank == 0 && !request.unique_id.empty()) {
    return Error{ErrorCode::impossible, "rank 0 gets its unique_id, and must not send one"};
  }
  return {};
}

Result<> check_other(const CollectiveRequest& request, RankPlace place) {
  if (request.kind == CollectiveKind::all_gather || request.kind == CollectiveKind::agree ||
      request.kind == CollectiveKind::all_reduce) {
    return {};
  }
  const bool root = request.kind == CollectiveKind::broadcast;
  const std::string name = root ? "root" : "peer";
  if (request.other >= place.world_size) {
    return Error{ErrorCode::out_of_range, name + " is " + std::to_string(request.other) +
                                              ", not below world_size, " +
                                              std::to_string(place.world_size)};
  }
  if (!root && request.other == place.rank) {
    return Error{ErrorCode::out_of_range,
                 "peer is " + std::to_string(request.other) + ", this rank itself"};
  }
  return {};
}

}  // namespace

std::string_view to_string(GroupState state) {
  constexpr std::string_view kNames[] = {"joining", "ready", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string_view to_string(CollectiveKind kind) {
  constexpr std::string_view kNames[] = {"send",       "recv",  "broadcast",
                                         "all_gather", "agree", "all_reduce"};
  static_assert(std::size(kNames) == kNumCollectiveKinds);
  return kNames[static_cast<std::size_t>(kind)];
}

Groups::Groups(const Services& services, GroupOptions options, std::unique_ptr<Collectives> local)
    : services_(services),
      options_(std::move(options)),
      packing_(services.runtime,
               {.limit_bytes = options_.packing_bytes, .least_slot_bytes = options_.piece_bytes}),
      local_(std::move(local)) {}

Groups::~Groups() {
  std::map<std::string, std::shared_ptr<Group>, std::less<>> all;
  {
    MutexLock lock(mutex_);
    all = std::exchange(groups_, {});
  }
  for (const auto& [name, group] : all) group->leave();
}

Result<Collectives*> Groups::collectives(std::string_view kind) {
  if (kind == "local") return local_.get();
  MutexLock lock(nccl_mutex_);
  if (!nccl_) {
    auto made = make_nccl_collectives(services_.runtime, services_.device_memory);
    if (!made) return Error{ErrorCode::unavailable, "no NCCL here: " + made.error().detail};
    nccl_ = std::move(*made);
    loaded_nccl_ = nccl_.get();
  }
  return nccl_.get();
}

void Groups::join(const GroupJoin& request, Done<GroupInfo> done) {
  if (auto fit = check_place(request, options_.max_world_size); !fit) {
    return done(std::move(fit).error());
  }
  // One of the constants that kind_of_unique_id returns.
  const std::string_view kind =
      kind_of_unique_id(request.place.rank == 0 ? options_.collective + ":" : request.unique_id);
  if (kind.empty()) {
    return done(Error{ErrorCode::malformed, "unique_id does not come from a rank 0"});
  }
  const auto devices = services_.runtime.devices();
  if (std::none_of(devices.begin(), devices.end(),
                   [&](const DeviceInfo& device) { return device.id == request.device_id; })) {
    return done(Error{ErrorCode::impossible, "device_id is " + std::to_string(request.device_id) +
                                                 "; there are " + std::to_string(devices.size()) +
                                                 " devices"});
  }
  // Held to the end, so that no two groups get the same name.
  MutexLock lock(mutex_);
  std::erase_if(groups_, [](const auto& member) { return member.second->refused(); });
  if (groups_.contains(request.name)) {
    return done(Error{ErrorCode::group_exists,
                      "this server is in group " + request.name + " already; leave it first"});
  }
  if (groups_.size() >= options_.max_groups) {
    return done(Error{ErrorCode::too_many,
                      std::to_string(groups_.size()) + " groups exist, which is the limit"});
  }
  const auto answer = std::make_shared<Done<GroupInfo>>(std::move(done));
  try {
    groups_.emplace(
        request.name,
        std::make_shared<Group>(
            Group::Parts{.kind = kind,
                         .collectives = [this, kind] { return collectives(kind); },
                         .packing = packing_,
                         .transfers = services_.transfers,
                         .log = services_.log,
                         .clock = services_.clock,
                         .options = options_,
                         .counters = counters_,
                         .failures = failures_,
                         .lease_ms = services_.lease_ms},
            request, [answer](Result<GroupInfo> joined) { (*answer)(std::move(joined)); }));
  } catch (const std::system_error& no_thread) {
    (*answer)(Error{ErrorCode::unavailable, no_thread.what()});
  }
}

std::shared_ptr<Group> Groups::look_up(std::string_view name) const {
  MutexLock lock(mutex_);
  const auto at = groups_.find(name);
  return at == groups_.end() || at->second->refused() ? nullptr : at->second;
}

Result<GroupInfo> Groups::find(std::string_view name) const {
  const auto group = look_up(name);
  if (!group) return unknown(name);
  return group->info();
}

std::vector<GroupInfo> Groups::list() const {
  std::vector<GroupInfo> all;
  MutexLock lock(mutex_);
  for (const auto& [name, group] : groups_) {
    if (!group->refused()) all.push_back(group->info());
  }
  return all;
}

Result<> Groups::leave(std::string_view name) {
  std::shared_ptr<Group> group;
  {
    MutexLock lock(mutex_);
    const auto at = groups_.find(name);
    if (at == groups_.end()) return unknown(name);
    group = std::move(at->second);
    groups_.erase(at);
  }
  group->leave();
  return {};
}

Result<TransferId> Groups::share(std::string_view name, CollectiveRequest request) {
  const auto group = look_up(name);
  if (!group) return unknown(name);
  CAIRN_TRY(check_other(request, group->info().place));
  return group->share(std::move(request));
}

void Groups::cancel(TransferId id) {
  std::vector<std::shared_ptr<Group>> all;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, group] : groups_) all.push_back(group);
  }
  for (const auto& group : all) {
    if (group->cancel(id)) return;
  }
}

std::vector<NamedAllocator> Groups::allocators() const {
  std::vector<NamedAllocator> all = local_->allocators();
  if (const Collectives* nccl = loaded_nccl_) {
    for (NamedAllocator& one : nccl->allocators()) all.push_back(std::move(one));
  }
  all.push_back({std::string(kPackingAllocator), "host", packing_.statistics()});
  return all;
}

bool Groups::give_back_cached(std::string_view allocator) {
  if (allocator != kPackingAllocator) return false;
  packing_.trim();
  return true;
}

GroupsStats Groups::stats() const {
  GroupsStats stats;
  for (const GroupInfo& group : list()) {
    const auto state = static_cast<std::size_t>(group.state);
    ++stats.groups[state];
    stats.ranks[state] += group.place.world_size;
    stats.queued_operations += group.queued_operations;
  }
  stats.failures = failures_.load(std::memory_order_relaxed);
  for (std::size_t kind = 0; kind < kNumCollectiveKinds; ++kind) {
    stats.kinds[kind] = counters_[kind].now();
  }
  return stats;
}

CollectiveKindStats CollectiveCounters::now() const {
  CollectiveKindStats stats{.sent_blocks = sent_blocks_.load(std::memory_order_relaxed),
                            .sent_bytes = sent_bytes_.load(std::memory_order_relaxed),
                            .received_blocks = received_blocks_.load(std::memory_order_relaxed),
                            .received_bytes = received_bytes_.load(std::memory_order_relaxed),
                            .durations = durations_.snapshot()};
  for (std::size_t i = 0; i < kNumTransferOutcomes; ++i) {
    stats.operations[i] = operations_[i].load(std::memory_order_relaxed);
  }
  return stats;
}

}  // namespace cairn

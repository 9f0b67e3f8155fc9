#include "blockmgr/engine_memory/engine_copy.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "blockmgr/cache/block_pieces.hpp"

namespace cairn {

EngineCopy::EngineCopy(const EngineCopyRequest& request, EngineMemoryCounters::Direction& counts,
                       std::shared_ptr<EngineMemoryCounters> counters)
    : core_(request.cache->core()),
      memory_(request.memory),
      keys_(request.keys),
      blocks_(request.blocks),
      part_(request.shard),
      counters_(std::move(counters)),
      counts_(counts) {}

EngineCopy::~EngineCopy() = default;

Result<> EngineCopy::check() const {
  CAIRN_TRY(core_->check_count(keys_.size()));
  const EngineMemoryConfig& memory = memory_->config();
  LayoutConfig shape = core_->shape(kv_group());
  CAIRN_TRY(check_part(shape, part_));
  shape.outer_dim = outers_of(shape, part_).count;
  if (!same_shape(shape, memory.shape)) {
    return Error{ErrorCode::impossible,
                 "the blocks of agent " + memory.name + " have another shape than those of cache " +
                     core_->config.name + (part_.is_whole() ? "" : " in that many shards")};
  }
  if (blocks_.size() != keys_.size()) {
    return Error{ErrorCode::wrong_length, "blocks has " + std::to_string(blocks_.size()) +
                                              " elements; it needs one per key, " +
                                              std::to_string(keys_.size())};
  }
  std::vector<std::uint32_t> sorted = blocks_;
  std::ranges::sort(sorted);
  if (!sorted.empty() && sorted.back() >= memory.shape.num_blocks) {
    return Error{ErrorCode::out_of_range, "blocks names block " + std::to_string(sorted.back()) +
                                              "; agent " + memory.name + " has " +
                                              std::to_string(memory.shape.num_blocks)};
  }
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    return Error{ErrorCode::state_conflict,
                 "blocks names block " + std::to_string(*twice) + " twice"};
  }
  return {};
}

const BlockLayout& EngineCopy::blocks_in(Tier tier) {
  const BlockLayout& whole = core_->layout(tier, kv_group());
  if (part_.is_whole()) return whole;
  const auto at = part_layouts_.find(tier);
  if (at != part_layouts_.end()) return at->second;
  return part_layouts_.emplace(tier, whole.outers(outers_of(whole.config(), part_))).first->second;
}

Result<> EngineCopy::take_on(const std::shared_ptr<EngineCopy>& self) {
  auto use = EngineMemory::use(memory_, self);
  if (!use) return std::move(use).error();
  use_ = std::move(*use);
  return {};
}

Result<> EngineCopy::open() {
  auto id = core_->open_transfer(keys_.size());
  if (!id) return std::move(id).error();
  {
    MutexLock lock(mutex_);
    id_ = *id;
  }
  transfers().begin(*id);
  transfers().set_layers_done(*id, 0);
  return {};
}

void EngineCopy::follow(std::shared_ptr<LayerCopy> copy) {
  {
    MutexLock lock(mutex_);
    if (finished_) return;
    parts_.push_back(copy);
    if (!cancelled_) return;
  }
  copy->cancel();
}

void EngineCopy::cancel() {
  std::vector<std::shared_ptr<LayerCopy>> parts;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    parts = parts_;
  }
  for (const auto& part : parts) part->cancel();
}

void EngineCopy::progressed(std::uint64_t layers) { transfers().set_layers_done(id(), layers); }

void EngineCopy::finish(End end) {
  {
    MutexLock lock(mutex_);
    finished_ = true;
    parts_.clear();
  }
  use_.end();
  const std::uint64_t bytes = end.copied_blocks * part_bytes(core_->shape(kv_group()), part_);
  counts_.done_blocks += end.done_blocks;
  counts_.failed_blocks += end.failures.size();
  counts_.bytes += bytes;
  const bool cancelled = std::ranges::all_of(
      end.failures, [](const auto& failure) { return failure.error.code == ErrorCode::cancelled; });
  const TransferState state = end.failures.empty() ? TransferState::done
                              : cancelled          ? TransferState::cancelled
                                                   : TransferState::failed;
  if (state == TransferState::failed) {
    for (auto& failure : end.failures) transfers().add(id(), std::move(failure));
  }
  if (state == TransferState::done) progressed(core_->shape(kv_group()).num_layers);
  transfers().add(id(), TransferTable::Arrived{.blocks = end.done_blocks, .bytes = bytes});
  transfers().end(id(), state);
}

}  // namespace cairn

#include <algorithm>
#include <string>
#include <utility>

#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/cache/outgoing.hpp"
#include "blockmgr/engine_memory/engine_copy.hpp"

namespace cairn {
// Pins the sources until the copy ends, so they count as used and are neither evicted nor moved.
class EngineLoad final : public EngineCopy {
 public:
  EngineLoad(const EngineCopyRequest& request, EngineMemoryCounters::Direction& counts,
             std::shared_ptr<EngineMemoryCounters> counters)
      : EngineCopy(request, counts, std::move(counters)), sources_(core_), errors_(keys_.size()) {}

  static Result<TransferId> start(EngineCopyRequest request,
                                  std::shared_ptr<EngineMemoryCounters> counters);

 private:
  // Blocks that come from the same tier.
  struct Part {
    std::vector<std::size_t> items;
    std::uint64_t layers = 0;
  };

  Result<> pin(std::shared_ptr<LeaseQuota> quota);
  void copy(const std::shared_ptr<EngineLoad>& self);
  void part_progressed(std::size_t part, std::uint64_t layers);
  void part_ended(std::size_t part, const std::vector<LayerCopy::Failure>& failures);
  void all_ended();

  Outgoing sources_;         // in the order of the keys
  LeaseQuotaShare counted_;  // for sources_
  std::vector<std::optional<Error>> errors_;
  Mutex parts_mutex_;
  std::vector<Part> parts_ CAIRN_GUARDED_BY(parts_mutex_);
  std::size_t parts_left_ CAIRN_GUARDED_BY(parts_mutex_) = 0;
};

Result<TransferId> EngineLoad::start(EngineCopyRequest request,
                                     std::shared_ptr<EngineMemoryCounters> counters) {
  EngineMemoryCounters& counts = *counters;
  auto load = std::make_shared<EngineLoad>(request, counts.loads, std::move(counters));
  CAIRN_TRY(load->check());
  CAIRN_TRY(load->take_on(load));
  CAIRN_TRY(load->pin(request.pins));
  CAIRN_TRY(load->open());
  const TransferId id = load->id();
  load->copy(load);
  return id;
}

// Pins all keys or none.
Result<> EngineLoad::pin(std::shared_ptr<LeaseQuota> quota) {
  auto counted = LeaseQuotaShare::take(std::move(quota), keys_.size());
  if (!counted) return std::move(counted).error();
  counted_ = std::move(*counted);
  const bool on_device = memory_->layout().storage_kind() == StorageKind::device;
  return sources_.pin(std::vector<KeyView>(keys_.begin(), keys_.end()),
                      on_device ? Tier::device : Tier::pinned);
}

void EngineLoad::copy(const std::shared_ptr<EngineLoad>& self) {
  std::array<std::vector<std::size_t>, kNumTiers> by_tier;
  const std::span<const SlotRef> sources = sources_.slots();
  for (std::size_t i = 0; i < sources.size(); ++i) {
    by_tier[index_of(sources[i].tier())].push_back(i);
  }
  std::size_t parts = 0;
  {
    MutexLock lock(parts_mutex_);
    for (auto& items : by_tier) {
      if (!items.empty()) parts_.push_back({.items = std::move(items)});
    }
    parts = parts_left_ = parts_.size();
  }
  if (parts == 0) return all_ended();
  for (std::size_t part = 0; part < parts; ++part) {
    LayerCopy::Request request{
        .core = core_, .destination = &memory_->layout(), .urgency = Urgency::engine};
    {
      MutexLock lock(parts_mutex_);
      const std::vector<std::size_t>& items = parts_[part].items;
      const Tier tier = sources[items.front()].tier();
      if (tier == Tier::disk && !part_.is_whole()) {
        request.source = &core_->layout(tier, kv_group());
        request.source_outers = outers_of(request.source->config(), part_);
      } else {
        request.source = &blocks_in(tier);
      }
      for (const std::size_t i : items) {
        request.pairs.push_back({sources[i].slot(), blocks_[i]});
      }
    }
    request.may_go_on = [self] { return self->memory_->check_whole(); };
    request.progressed = [self, part](std::uint64_t layers) {
      self->part_progressed(part, layers);
    };
    request.ended = [self, part](const std::vector<LayerCopy::Failure>& failures) {
      self->part_ended(part, failures);
    };
    follow(LayerCopy::start(std::move(request)));
  }
}

void EngineLoad::part_progressed(std::size_t part, std::uint64_t layers) {
  MutexLock lock(parts_mutex_);
  parts_[part].layers = layers;
  progressed(std::ranges::min(parts_, {}, &Part::layers).layers);
}

void EngineLoad::part_ended(std::size_t part, const std::vector<LayerCopy::Failure>& failures) {
  {
    MutexLock lock(parts_mutex_);
    const std::vector<std::size_t>& items = parts_[part].items;
    for (const LayerCopy::Failure& failure : failures) {
      errors_[items[failure.pair]] = failure.error;
    }
    if (--parts_left_ > 0) return;
  }
  all_ended();
}

void EngineLoad::all_ended() {
  // If the destination was truncated, no block has arrived. That does not make the sources bad.
  const auto whole = memory_->check_whole();
  End end;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (whole && !errors_[i]) continue;
    end.failures.push_back({keys_[i], whole ? *errors_[i] : whole.error()});
    if (whole) sources_.failed(i, *errors_[i]);
  }
  sources_.let_go();
  counted_.give_back_all();
  end.done_blocks = end.copied_blocks = keys_.size() - end.failures.size();
  finish(std::move(end));
}

Result<TransferId> load_to_engine(EngineCopyRequest request,
                                  std::shared_ptr<EngineMemoryCounters> counters) {
  return EngineLoad::start(std::move(request), std::move(counters));
}

}  // namespace cairn

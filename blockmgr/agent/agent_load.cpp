#include <algorithm>
#include <string>
#include <utility>

#include "base/hex.hpp"
#include "blockmgr/agent/agent_copy.hpp"
#include "blockmgr/cache/cache_copy.hpp"

namespace cairn {
namespace {

// Under one hold of the lock: up to 1 us each to find and pin, some 30 ns to let go.
constexpr std::size_t kPinnedAtOnce = 8;
constexpr std::size_t kLetGoAtOnce = 128;

}  // namespace

// The sources are pinned from the start until their bytes are there: what is being loaded counts as
// used, and is neither evicted nor moved away.
class AgentLoad final : public AgentCopy {
 public:
  using AgentCopy::AgentCopy;
  ~AgentLoad() override { unpin(); }

  static Result<TransferId> start(AgentCopyRequest request,
                                  std::shared_ptr<AgentCounters> counters);

 private:
  struct Item {
    SlotRef source;
    std::uint64_t generation = 0;
    std::optional<Error> error = {};
  };
  // The blocks that come from one tier.
  struct Part {
    std::vector<std::size_t> items;
    std::uint64_t layers = 0;
  };

  Result<> pin(std::shared_ptr<LeaseQuota> quota);
  void unpin();
  void copy(const std::shared_ptr<AgentLoad>& self);
  void part_progressed(std::size_t part, std::uint64_t layers);
  void part_ended(std::size_t part, const std::vector<LayerCopy::Failure>& failures);
  void all_ended();

  std::vector<Item> items_;  // of the keys; the pinned ones
  LeaseQuotaShare counted_;  // of those
  Mutex parts_mutex_;
  std::vector<Part> parts_ CAIRN_GUARDED_BY(parts_mutex_);
  std::size_t parts_left_ CAIRN_GUARDED_BY(parts_mutex_) = 0;
};

Result<TransferId> AgentLoad::start(AgentCopyRequest request,
                                    std::shared_ptr<AgentCounters> counters) {
  AgentCounters& counts = *counters;
  auto load = std::make_shared<AgentLoad>(request, counts.loads, std::move(counters));
  CAIRN_TRY(load->check());
  CAIRN_TRY(load->take_on(load));
  CAIRN_TRY(load->pin(request.pins));
  CAIRN_TRY(load->open());
  const TransferId id = load->id();
  load->copy(load);
  return id;
}

// All of them, or none.
Result<> AgentLoad::pin(std::shared_ptr<LeaseQuota> quota) {
  auto counted = LeaseQuotaShare::take(std::move(quota), keys_.size());
  if (!counted) return std::move(counted).error();
  counted_ = std::move(*counted);
  const bool on_device = agent_->layout().storage_kind() == StorageKind::device;
  const std::vector<KeyView> keys(keys_.begin(), keys_.end());
  Section section(*core_, LockUse::transfer);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kPinnedAtOnce == 0) {
      if (i > 0) section.give_way();
      CAIRN_TRY(section.check_usable());
      section->store.prefetch(std::span(keys).subspan(i, std::min(kPinnedAtOnce, keys.size() - i)));
    }
    const EntryNumber entry = section->store.find(keys[i], section.now());
    if (entry == kNoEntry) {
      return Error{ErrorCode::unknown_key,
                   "key " + to_hex(keys[i].bytes()) + " is not in cache " + core_->config.name};
    }
    const SlotRef at =
        *source_of_copy(section->store.entry(entry), on_device ? Tier::device : Tier::pinned);
    section->store.pin(at);
    items_.push_back({.source = at, .generation = section->store.record(at).generation});
  }
  return {};
}

// The prefix's last block first: so it is evicted first.
void AgentLoad::unpin() {
  if (items_.empty()) return;
  Section section(*core_, LockUse::transfer);
  for (std::size_t left = items_.size(); left-- > 0;) {
    if (left % kLetGoAtOnce == kLetGoAtOnce - 1) section.give_way();
    section->store.unpin(items_[left].source);
  }
  items_.clear();
  counted_.give_back_all();
}

void AgentLoad::copy(const std::shared_ptr<AgentLoad>& self) {
  std::array<std::vector<std::size_t>, kNumTiers> by_tier;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    by_tier[index_of(items_[i].source.tier())].push_back(i);
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
        .core = core_, .destination = &agent_->layout(), .urgency = Urgency::engine};
    {
      MutexLock lock(parts_mutex_);
      const std::vector<std::size_t>& items = parts_[part].items;
      request.source = &core_->layout(items_[items.front()].source.tier());
      for (const std::size_t i : items) {
        request.pairs.push_back({items_[i].source.slot(), blocks_[i]});
      }
    }
    request.may_go_on = [self] { return self->agent_->check_whole(); };
    request.progressed = [self, part](std::uint64_t layers) {
      self->part_progressed(part, layers);
    };
    request.ended = [self, part](const std::vector<LayerCopy::Failure>& failures) {
      self->part_ended(part, failures);
    };
    follow(LayerCopy::start(std::move(request)));
  }
}

void AgentLoad::part_progressed(std::size_t part, std::uint64_t layers) {
  MutexLock lock(parts_mutex_);
  parts_[part].layers = layers;
  progressed(std::ranges::min(parts_, {}, &Part::layers).layers);
}

void AgentLoad::part_ended(std::size_t part, const std::vector<LayerCopy::Failure>& failures) {
  {
    MutexLock lock(parts_mutex_);
    const std::vector<std::size_t>& items = parts_[part].items;
    for (const LayerCopy::Failure& failure : failures) {
      items_[items[failure.pair]].error = failure.error;
    }
    if (--parts_left_ > 0) return;
  }
  all_ended();
}

void AgentLoad::all_ended() {
  // What was copied into memory that is gone has arrived nowhere, and says nothing of its source.
  const auto whole = agent_->check_whole();
  End end;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    if (whole && !item.error) continue;
    end.failures.push_back({keys_[i], whole ? *item.error : whole.error()});
    if (!whole) continue;
    Section section(*core_, LockUse::transfer);
    section->moves.drop_unreadable(section, item.source, item.generation, *item.error);
  }
  unpin();
  end.done_blocks = end.copied_blocks = keys_.size() - end.failures.size();
  finish(std::move(end));
}

Result<TransferId> load_to_agent(AgentCopyRequest request,
                                 std::shared_ptr<AgentCounters> counters) {
  return AgentLoad::start(std::move(request), std::move(counters));
}

}  // namespace cairn

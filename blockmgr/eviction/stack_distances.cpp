#include "blockmgr/eviction/stack_distances.hpp"

#include <algorithm>
#include <bit>

namespace cairn {
namespace {

constexpr std::uint64_t kFadesAHalfLife = 16;

}  // namespace

StackDistances::StackDistances(const Options& options)
    : options_(options),
      stack_(2 * std::size_t{options.max_blocks}),
      tree_(2 * std::size_t{options.max_blocks} + 1),
      until_fade_(options.half_life_blocks / kFadesAHalfLife) {
  places_.reserve(options.max_blocks + 1);
}

std::size_t StackDistances::bin_of(std::uint64_t distance) {
  if (distance >> kBinBits == 0) return distance;
  const auto octave = static_cast<std::uint32_t>(std::bit_width(distance)) - kBinBits - 1;
  return (std::size_t{octave} << kBinBits) + (distance >> octave);
}

std::uint64_t StackDistances::start_of(std::size_t bin) {
  if (bin < std::size_t{2} << kBinBits) return bin;
  const std::size_t octave = (bin >> kBinBits) - 1;
  return (bin - (octave << kBinBits)) << octave;
}

bool StackDistances::request(const Asked& asked) {
  others_.asked += static_cast<double>(asked.others);
  std::uint64_t blocks = asked.others;
  for (const AskedBlock& block : asked.followed) {
    count(block);
    if (block.is_hub) ++blocks;
  }
  for (auto block = asked.followed.rbegin(); block != asked.followed.rend(); ++block) {
    put_on_top(*block);
  }
  if (options_.half_life_blocks == 0) return false;
  if (until_fade_ > blocks) {
    until_fade_ -= blocks;
    return false;
  }
  until_fade_ = options_.half_life_blocks / kFadesAHalfLife;
  fade();
  return true;
}

void StackDistances::stored(const AskedBlock& block) {
  if (follows(block) && !places_.contains(block.key_hash)) put_on_top(block);
}

void StackDistances::count(const AskedBlock& block) {
  Counts& counts = block.is_hub ? hubs_ : others_;
  if (block.is_hub) ++counts.asked;
  ++counts.followed;
  const auto known = places_.find(block.key_hash);
  if (known == places_.end()) return;
  // What is above, and itself.
  const std::uint64_t own = stack_[known->second].weight;
  counts.hits[bin_of(weight_from(known->second) - own + 1)] += 1;
}

void StackDistances::put_on_top(const AskedBlock& block) {
  if (const auto known = places_.find(block.key_hash); known != places_.end()) {
    take_out(known->second);
  } else if (places_.size() == options_.max_blocks) {
    give_up_oldest();
  }
  if (top_ == stack_.size()) close_up();
  const std::uint32_t weight = block.is_hub ? 1 : options_.one_in;
  stack_[top_] = {block.key_hash, weight};
  places_[block.key_hash] = top_;
  add_weight(top_, weight);
  total_weight_ += weight;
  ++top_;
}

void StackDistances::take_out(std::uint32_t place) {
  Followed& followed = stack_[place];
  add_weight(place, -std::int64_t{followed.weight});
  total_weight_ -= followed.weight;
  followed.weight = 0;
}

void StackDistances::give_up_oldest() {
  while (stack_[bottom_].weight == 0) ++bottom_;
  places_.erase(stack_[bottom_].key_hash);
  take_out(bottom_);
}

// Half of the places are holes at least: each is filled once before it comes to this again.
void StackDistances::close_up() {
  std::uint32_t to = 0;
  for (std::uint32_t from = bottom_; from < top_; ++from) {
    if (stack_[from].weight == 0) continue;
    stack_[to] = stack_[from];
    places_[stack_[to].key_hash] = to;
    ++to;
  }
  top_ = to;
  bottom_ = 0;
  std::ranges::fill(tree_, 0U);
  for (std::uint32_t place = 0; place < top_; ++place) add_weight(place, stack_[place].weight);
}

void StackDistances::add_weight(std::uint32_t place, std::int64_t weight) {
  for (std::size_t at = place + 1; at < tree_.size(); at += at & -at) {
    tree_[at] += static_cast<std::uint32_t>(weight);
  }
}

std::uint64_t StackDistances::weight_from(std::uint32_t place) const {
  std::uint64_t below = 0;
  for (std::size_t at = place; at > 0; at -= at & -at) below += tree_[at];
  return total_weight_ - below;
}

void StackDistances::fade() {
  for (Counts* counts : {&hubs_, &others_}) {
    counts->asked *= kFade;
    counts->followed *= kFade;
    for (float& hits : counts->hits) hits *= static_cast<float>(kFade);
  }
}

double StackDistances::Counts::hits_up_to(std::uint64_t distance) const {
  if (followed == 0) return 0;
  const std::size_t last = bin_of(distance);
  // Of the bin in which it lies, the distances up to it.
  const std::uint64_t start = start_of(last);
  const double share =
      static_cast<double>(distance - start + 1) / static_cast<double>(start_of(last + 1) - start);
  double sum = share * hits[last];
  for (std::size_t bin = 0; bin < last; ++bin) sum += hits[bin];
  return asked * sum / followed;
}

double StackDistances::hit_rate(std::uint64_t capacity_blocks) const {
  if (asked_blocks() == 0) return 0;
  return hub_hit_rate(capacity_blocks) + others_.hits_up_to(capacity_blocks) / asked_blocks();
}

double StackDistances::hub_hit_rate(std::uint64_t capacity_blocks) const {
  if (asked_blocks() == 0) return 0;
  return hubs_.hits_up_to(capacity_blocks) / asked_blocks();
}

double StackDistances::share_of_others() const {
  if (asked_blocks() == 0) return 0;
  return others_.asked / asked_blocks();
}

std::uint64_t StackDistances::memory_bytes() const {
  return sizeof(*this) + stack_.size() * sizeof(Followed) + tree_.size() * sizeof(std::uint32_t) +
         places_.bucket_count() * (sizeof(std::uint64_t) * 2 + 1);
}

}  // namespace cairn

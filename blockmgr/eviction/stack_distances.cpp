#include "blockmgr/eviction/stack_distances.hpp"

#include <bit>

namespace cairn {
namespace {

constexpr std::uint64_t kFadesAHalfLife = 16;

}  // namespace

StackDistances::StackDistances(const Options& options)
    : options_(options),
      stack_(options.max_blocks),
      until_fade_(options.half_life_blocks / kFadesAHalfLife) {}

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
  if (follows(block) && !stack_.contains(block.key_hash)) put_on_top(block);
}

void StackDistances::count(const AskedBlock& block) {
  Counts& counts = block.is_hub ? hubs_ : others_;
  if (block.is_hub) ++counts.asked;
  ++counts.followed;
  const auto above = stack_.weight_above(block.key_hash);
  if (above) counts.hits[bin_of(*above + 1)] += 1;
}

void StackDistances::put_on_top(const AskedBlock& block) {
  stack_.use(block.key_hash, block.is_hub ? 1 : options_.one_in);
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
  // The part of the last bin up to the distance.
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

}  // namespace cairn

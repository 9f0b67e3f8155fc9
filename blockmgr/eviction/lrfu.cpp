#include "blockmgr/eviction/lrfu.hpp"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

constexpr std::uint32_t kRememberedRequests = 65'536;
// BlockHistory::frequency is a fixed-point number with so many bits behind the point: up to 64
// uses, which eight half-lives make a quarter of one.
constexpr float kOne = 1024;
constexpr float kMost = 65'535;
constexpr float kListsAnOctave = 8;

}  // namespace

Lrfu::Lrfu(const PolicyOptions& options)
    : log_(std::min(kRememberedRequests, options.max_requests)) {}

RequestNumber Lrfu::begin(const RequestStart& start) { return log_.begin(start); }

void Lrfu::touched(BlockHistory& block, RequestNumber request) {
  float count = 0;
  if (block.is_known() && log_.remembers(block.request)) {
    const auto passed = static_cast<float>(log_[log_.last()].unix_ms - log_[block.request].unix_ms);
    count = block.frequency * std::exp2(-passed / static_cast<float>(kHalfLifeMs));
  }
  block.frequency = static_cast<std::uint16_t>(std::min(count + kOne, kMost));
  block.request = request;
  if (block.uses < kMostUses) ++block.uses;
}

void Lrfu::listed(BlockHistory& block) {
  const float octaves = std::log2(std::max<float>(block.frequency, kOne) / kOne);
  block.list = static_cast<std::uint8_t>(
      std::min<float>(octaves * kListsAnOctave, EvictionPolicy::kMaxLists - 1));
}

float Lrfu::worth(const BlockHistory& block) const {
  if (!log_.remembers(block.request)) return -1e9F;
  const auto age = static_cast<float>(log_[log_.last()].unix_ms - log_[block.request].unix_ms);
  return static_cast<float>(block.list) / kListsAnOctave - age / static_cast<float>(kHalfLifeMs);
}

}  // namespace cairn

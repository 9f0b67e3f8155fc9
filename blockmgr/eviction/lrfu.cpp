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
// Lists: what is never used, what is used late, counts from one use on.
constexpr unsigned kNeverList = 0;
constexpr unsigned kLaterList = 1;
constexpr unsigned kOneUseList = 2;
constexpr float kLongAgo = -1e9F;
constexpr float kFirst = -1e10F;

}  // namespace

Lrfu::Lrfu(const PolicyOptions& options)
    : log_(std::min(kRememberedRequests, options.max_requests)) {}

RequestNumber Lrfu::begin_request(const RequestStart& start) { return log_.begin(start); }

std::uint32_t Lrfu::touch(BlockHistory& block, RequestNumber request) {
  float count = 0;
  if (block.is_known() && log_.remembers(block.request)) {
    const auto passed = static_cast<float>(log_[log_.last()].unix_ms - log_[block.request].unix_ms);
    count = block.frequency * std::exp2(-passed / static_cast<float>(kHalfLifeMs));
  }
  block.frequency = static_cast<std::uint16_t>(std::min(count + kOne, kMost));
  block.request = request;
  if (block.uses < kMostUses) ++block.uses;
  return kAnyNumber;
}

std::uint32_t Lrfu::list(BlockHistory& block, NextUse told) {
  float count = std::max<float>(block.frequency, kOne);
  if (expected_within_ms(told) > 0) count += kOne;
  const float list = kOneUseList + std::log2(count / kOne) * kListsAnOctave;
  block.list = static_cast<std::uint32_t>(std::min<float>(list, kMaxLists - 1)) & 63U;
  if (told == NextUse::never) block.list = kNeverList & 63U;
  if (told == NextUse::later) block.list = kLaterList & 63U;
  return kAnyNumber;
}

float Lrfu::worth(const BlockHistory& block, std::uint32_t /*expected_blocks*/) const {
  if (block.list == kNeverList) return kFirst;
  if (!log_.remembers(block.request)) return kLongAgo;
  const auto age = static_cast<float>(log_[log_.last()].unix_ms - log_[block.request].unix_ms);
  const float octaves = block.list == kLaterList
                            ? -1
                            : (static_cast<float>(block.list) - kOneUseList) / kListsAnOctave;
  return octaves - age / static_cast<float>(kHalfLifeMs);
}

}  // namespace cairn

#include "blockmgr/eviction/lrfu.hpp"

#include <algorithm>
#include <bit>
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
// What another run needs to know of a block.
struct KeptByLrfu {
  std::uint64_t order : 3;  // the kind of order, + 1
  std::uint64_t uses : 4;
  std::uint64_t frequency : 16;
  std::uint64_t unix_s : 32;  // of its last use
  std::uint64_t unused : 9;
};
static_assert(sizeof(KeptByLrfu) == sizeof(std::uint64_t));
constexpr std::uint64_t kLrfuOrder = static_cast<std::uint64_t>(EvictionKind::lrfu) + 1;

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

std::uint64_t Lrfu::kept(const BlockHistory& block) const {
  if (!block.is_known() || !log_.remembers(block.request)) return 0;
  return std::bit_cast<std::uint64_t>(
      KeptByLrfu{.order = kLrfuOrder,
                 .uses = block.uses,
                 .frequency = block.frequency,
                 .unix_s = static_cast<std::uint32_t>(log_[block.request].unix_ms / 1000),
                 .unused = 0});
}

bool Lrfu::take_kept(BlockHistory& block, std::uint64_t kept, NextUse /*told*/) {
  const auto known = std::bit_cast<KeptByLrfu>(kept);
  if (known.order != kLrfuOrder || known.uses == 0 || known.uses > kMostUses) return false;
  const auto unix_ms = static_cast<std::int64_t>(known.unix_s) * 1000;
  const bool is_new = log_.last() == 0 || log_[log_.last()].unix_ms != unix_ms;
  block = {.request = is_new ? log_.restore(0, {.unix_ms = unix_ms}) : log_.last(),
           .frequency = static_cast<std::uint16_t>(known.frequency),
           .uses = static_cast<std::uint8_t>(known.uses & 15U)};
  return true;
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

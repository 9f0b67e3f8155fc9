#include "blockmgr/eviction/class_hazard.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace cairn {
namespace {

constexpr std::uint32_t kUsedGroups = 4;  // see BlockGroup
// How much of a request was new: an answer and a question, a longer text, a whole document.
constexpr std::array<std::uint32_t, 2> kUnknownBlocks = {4, 16};
// Short outputs are steps of longer work. Long outputs mostly end it.
constexpr std::array<std::uint32_t, 2> kOutputTokens = {64, 256};
constexpr std::uint32_t kOutputs = kOutputTokens.size() + 1;
constexpr std::uint32_t kContexts = (kUnknownBlocks.size() + 1) * kOutputs;
// Hinted blocks are also classed by output length: without it, wrong hints for long documents,
// which get other questions, cost more than hints gained. The number of uses does not matter for
// them.
constexpr std::uint32_t kFirstHinted = kUsedGroups * kContexts;
constexpr std::uint32_t kFirstOther = kFirstHinted + (kNextUses - 1) * kOutputs;
constexpr std::uint32_t kClasses = kFirstOther + 2;
// By NextUse: how many times as often as others such blocks are used, assumed for ages without
// data.
constexpr std::array<float, kNextUses> kExpectedUses = {1, 0.1F, 0.5F, 1, 2, 4};
static_assert(kClasses <= EvictionPolicy::kMaxLists);
constexpr std::uint32_t kRebuildRequests = 32;
constexpr float kHalfLifeRequests = 1000;
constexpr std::uint32_t kMinWindowBlocks = 65'536;
constexpr std::uint32_t kWindowCapacities = 8;

std::uint32_t window_of(std::uint32_t capacity_blocks) {
  return std::max(kMinWindowBlocks, kWindowCapacities * capacity_blocks);
}

std::uint32_t level_of(std::uint32_t value, const std::array<std::uint32_t, 2>& bounds) {
  return static_cast<std::uint32_t>(value >= bounds[0]) + (value >= bounds[1] ? 1 : 0);
}
// The lower bound of a level.
std::uint32_t least_of(std::uint32_t level, const std::array<std::uint32_t, 2>& bounds) {
  return level == 0 ? 0 : bounds[std::min<std::size_t>(level, bounds.size()) - 1];
}

// The data that a block's class and age depend on, for another run.
struct KeptByHazard {
  std::uint64_t order : 3;  // EvictionKind + 1
  std::uint64_t uses : 4;
  std::uint64_t is_hub : 1;
  std::uint64_t is_tail : 1;
  // Of its request:
  std::uint64_t unknown_level : 2;
  std::uint64_t output_level : 2;
  std::uint64_t blocks : 16;  // at most kMostBlocks
  std::uint64_t position_blocks : 32;
  std::uint64_t unused : 3;
};
static_assert(sizeof(KeptByHazard) == sizeof(std::uint64_t));
constexpr std::uint64_t kHazardOrder = static_cast<std::uint64_t>(EvictionKind::class_hazard) + 1;
constexpr std::uint32_t kMostBlocks = 0xFFFF;
// Marks a request of an earlier run. There are fewer buckets, as each widens by half an octave.
constexpr std::uint8_t kLeftInEarlierRuns = 0xFF;

// Whether settle() has already moved the request past the bucket.
bool has_left(const PastRequest& request, std::uint32_t bucket) {
  return request.left_buckets > bucket && request.left_buckets != kLeftInEarlierRuns;
}

BlockGroup group_of(const BlockHistory& block) {
  if (block.is_tail) return BlockGroup::tail;
  if (block.is_hub) return BlockGroup::hub;
  if (block.is_hinted) return BlockGroup::hinted;
  if (block.uses <= 1) return BlockGroup::used_once;
  if (block.uses == 2) return BlockGroup::used_twice;
  return block.uses < kMostUses ? BlockGroup::used_often : BlockGroup::used_most;
}

}  // namespace

ClassHazard::ClassHazard(const PolicyOptions& options)
    : log_(std::min(std::max(8192U, options.capacity_blocks / 2), options.max_requests)),
      table_({.classes = kClasses, .max_age_blocks = window_of(options.capacity_blocks)}),
      inside_(table_.buckets() - 1, 1) {
  for (std::uint32_t c = kFirstHinted; c < kFirstOther; ++c) {
    table_.expect(c, kExpectedUses[1 + (c - kFirstHinted) / kOutputs]);
  }
  table_.rebuild();
}

std::uint32_t ClassHazard::class_of(BlockGroup group, const PastRequest& request) {
  if (group == BlockGroup::tail) return kClasses - 1;
  if (group == BlockGroup::hub) return kClasses - 2;
  const std::uint32_t output = level_of(request.output_tokens, kOutputTokens);
  if (group == BlockGroup::hinted) {
    return kFirstHinted + (static_cast<std::uint32_t>(request.next_use) - 1) * kOutputs + output;
  }
  const std::uint32_t context = level_of(request.unknown, kUnknownBlocks) * kOutputs + output;
  return static_cast<std::uint32_t>(group) * kContexts + context;
}

// A long prompt teaches little more than a short one, because its blocks share their fate. A
// sampled block weighs more, or a sample would learn more slowly than the whole; but it weighs less
// than the blocks that it stands for, as it is only one.
float ClassHazard::weight_of(const PastRequest& request) {
  const auto blocks = static_cast<float>(request.blocks());
  return std::sqrt(static_cast<float>(request.each)) / std::cbrt(blocks * blocks);
}

std::uint32_t ClassHazard::lists() const { return kClasses; }

RequestNumber ClassHazard::begin_request(const RequestStart& start) {
  const RequestNumber number = log_.begin(start);
  log_[number].weight = weight_of(log_[number]);
  seen_ = {};
  if (restored_.of_request != 0) pass_over_restored();
  if (until_rebuild_-- == 0) {
    until_rebuild_ = kRebuildRequests - 1;
    settle_all();
    table_.fade(std::exp2(-static_cast<float>(kRebuildRequests) / kHalfLifeRequests));
    table_.rebuild();
  }
  return number;
}

// Requests older than a bucket's end have lived through it, with their waiting blocks. Counts that
// for all requests, before the table is rebuilt. settle() counts it for one request, before its
// waiting blocks or their class change.
void ClassHazard::settle_all() {
  const std::uint32_t now_blocks = log_.position_blocks();
  for (std::uint32_t k = 0; k < inside_.size(); ++k) {
    const std::uint32_t ends_at = table_.start_of(k + 1);
    RequestNumber oldest = inside_[k];
    if (!log_.remembers(oldest)) oldest = log_.first();
    for (; oldest != log_.last(); ++oldest) {
      const RequestLog::Mark& mark = log_.mark(oldest);
      if (now_blocks - mark.position_blocks < ends_at) break;
      if (mark.waiting > 0 && !has_left(log_[oldest], k)) settle(oldest);
    }
    inside_[k] = oldest;
  }
}

// REQUIRES: the request is remembered.
void ClassHazard::settle(RequestNumber number) {
  if (number == log_.last()) return;
  PastRequest& request = log_[number];
  std::uint32_t left = request.left_buckets;
  if (left == kLeftInEarlierRuns) {
    left = table_.bucket_of(earlier_runs_blocks_ - log_.mark(number).position_blocks);
  }
  const std::uint32_t age_blocks = log_.age_blocks(number);
  std::uint32_t bucket = left;
  while (bucket < inside_.size() && age_blocks >= table_.start_of(bucket + 1)) ++bucket;
  request.left_buckets = static_cast<std::uint8_t>(bucket);
  if (left == bucket) return;
  for (std::uint32_t g = 0; g < kBlockGroups; ++g) {
    if (request.waiting[g] == 0) continue;
    table_.lived_through({class_of(static_cast<BlockGroup>(g), request), left}, bucket - left,
                         request.weight * static_cast<float>(request.waiting[g]));
  }
}

void ClassHazard::touched_more(const BlockHistory& before, RequestNumber request,
                               std::uint32_t count) {
  PastRequest& now = log_[request];
  count_use(before, now, count);
  now.used += count;
  if (now.used > now.asked) now.weight = weight_of(now);
}

void ClassHazard::listed_more(const BlockHistory& after, std::uint32_t count) {
  log_.wait(after.request, group_of(after), count);
}

void ClassHazard::count_use(const BlockHistory& before, PastRequest& now, std::uint32_t blocks) {
  if (!before.is_known() || !log_.remembers(before.request)) {
    now.unknown += blocks * now.each;
    return;
  }
  if (!before.counted) return;
  const PastRequest& last = log_[before.request];
  const BlockGroup group = group_of(before);
  if (seen_.request != before.request || !seen_.is_known) {
    settle(before.request);
    seen_ = {.request = before.request,
             .bucket = table_.bucket_of(log_.age_blocks(before.request)),
             .is_known = true};
  }
  log_.end_wait(before.request, group, blocks);
  table_.used_again({class_of(group, last), seen_.bucket},
                    static_cast<float>(blocks) * last.weight);
}

std::uint32_t ClassHazard::touch(BlockHistory& block, RequestNumber request) {
  settle(request);
  PastRequest& now = log_[request];
  count_use(block, now, 1);
  if (block.is_known() && log_.remembers(block.request)) {
    // The deepest block counts: prompts that share only their beginning are other conversations.
    if (!block.is_hub) {
      now.turn = static_cast<std::uint8_t>(std::min<std::uint32_t>(block.uses + 1U, kMostUses));
    }
  } else {
    block.uses = 0;
  }
  block.counted = false;
  block.is_hinted = false;
  block.request = request;
  block.is_last = ++now.used == now.asked;
  if (now.used > now.asked) now.weight = weight_of(now);
  if (block.uses < kMostUses) ++block.uses;
  // The last block asked for is handled alone: it may be a tail.
  if (now.used > now.asked) return kAnyNumber;
  return now.used < now.asked ? now.asked - now.used - 1 : 0;
}

std::optional<std::uint32_t> ClassHazard::end_request(RequestNumber request,
                                                      const RequestEnd& end) {
  if (!log_.remembers(request)) return std::nullopt;
  settle(request);
  PastRequest& record = log_[request];
  if (end.unknown_blocks) record.unknown = *end.unknown_blocks;
  if (end.output_tokens) record.output_tokens = *end.output_tokens;
  if (end.full_blocks) record.ends_in_part = record.asked > *end.full_blocks;
  if (end.next_use != NextUse::unknown) record.next_use = end.next_use;
  if (record.unknown == 0) return std::nullopt;  // its stored blocks may follow
  return record.unknown;
}

std::uint32_t ClassHazard::list(BlockHistory& block, NextUse hinted) {
  if (block.counted || !log_.remembers(block.request)) return kAnyNumber;
  const PastRequest& request = log_[block.request];
  if (block.uses < request.turn) block.uses = request.turn & 15U;
  block.is_tail = block.is_last && request.ends_in_part;
  block.is_hinted = hinted != NextUse::unknown && request.next_use != NextUse::unknown;
  const BlockGroup group = group_of(block);
  settle(block.request);
  log_.wait(block.request, group, 1);
  block.counted = true;
  block.list = class_of(group, request) & 63U;
  return kAnyNumber;
}

void ClassHazard::rehint(BlockHistory& block, RequestNumber request) {
  if (block.counted && log_.remembers(block.request)) {
    settle(block.request);
    log_.end_wait(block.request, group_of(block), 1);
  }
  block.counted = false;
  block.request = request;
  PastRequest& now = log_[request];
  ++now.used;
  now.weight = weight_of(now);
}

std::uint64_t ClassHazard::kept(const BlockHistory& block) const {
  if (!block.is_known() || !log_.remembers(block.request)) return 0;
  const PastRequest& request = log_[block.request];
  return std::bit_cast<std::uint64_t>(
      KeptByHazard{.order = kHazardOrder,
                   .uses = block.uses,
                   .is_hub = block.is_hub,
                   .is_tail = block.is_tail,
                   .unknown_level = level_of(request.unknown, kUnknownBlocks) & 3U,
                   .output_level = level_of(request.output_tokens, kOutputTokens) & 3U,
                   .blocks = std::min(request.blocks(), kMostBlocks) & kMostBlocks,
                   .position_blocks = log_.mark(block.request).position_blocks,
                   .unused = 0});
}

bool ClassHazard::take_kept(BlockHistory& block, std::uint64_t kept, NextUse hinted) {
  const auto known = std::bit_cast<KeptByHazard>(kept);
  if (known.order != kHazardOrder || known.uses == 0 || known.uses > kMostUses) return false;
  KeptByHazard of_request = known;
  of_request.uses = of_request.is_hub = of_request.is_tail = 0;
  const auto request = std::bit_cast<std::uint64_t>(of_request);
  if (restored_.of_request != request || restored_.hinted != hinted) {
    PastRequest record{
        .asked = static_cast<std::uint32_t>(known.blocks),
        .unknown = least_of(static_cast<std::uint32_t>(known.unknown_level), kUnknownBlocks),
        .output_tokens = least_of(static_cast<std::uint32_t>(known.output_level), kOutputTokens),
        .ends_in_part = true,
        .next_use = hinted,
        .left_buckets = kLeftInEarlierRuns};
    record.weight = weight_of(record);
    restored_ = {request, hinted,
                 log_.restore(static_cast<std::uint32_t>(known.position_blocks), record)};
  }
  block = {.request = restored_.number,
           .uses = static_cast<std::uint8_t>(known.uses & 15U),
           .is_hub = known.is_hub != 0,
           .is_last = known.is_tail != 0};
  return true;
}

// The earlier runs have counted what restored requests lived through. REQUIRES: the first request
// since begins.
void ClassHazard::pass_over_restored() {
  restored_ = {};
  earlier_runs_blocks_ = log_.mark(log_.last()).position_blocks;
  for (std::uint32_t k = 0; k < inside_.size(); ++k) {
    RequestNumber low = log_.first();
    RequestNumber high = log_.last();
    while (low != high) {
      const RequestNumber middle = low + (high - low) / 2;
      if (earlier_runs_blocks_ - log_.mark(middle).position_blocks >= table_.start_of(k + 1)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    inside_[k] = low;
  }
}

float ClassHazard::worth(const BlockHistory& block, std::uint32_t /*expected_blocks*/) const {
  if (!log_.remembers(block.request)) return 0;
  return table_.worth({block.list, table_.bucket_of(log_.age_blocks(block.request))});
}

std::uint64_t ClassHazard::memory_bytes() const {
  return log_.memory_bytes() + table_.memory_bytes();
}

}  // namespace cairn

#include "blockmgr/eviction/capacity_curve.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <ranges>
#include <utility>

#include "blockmgr/eviction/optimum.hpp"

namespace cairn {
namespace {

// 33 bytes each. With models fewer blocks are followed, to stay within 4 MiB. The curve reaches
// four times the cache's size.
constexpr std::uint32_t kFollowedBlocks = 65'536;
constexpr std::uint32_t kFollowedBesideModels = 30'100;
constexpr std::uint32_t kMinFollowedBlocks = 1024;
// Samples of small caches err most. Caches of less than twice this size follow all blocks. Larger
// ones follow one in four: that errs less than one in eight of 30,000, and takes half the time.
constexpr std::uint32_t kBlocksOfWhichAllAreFollowed = 4096;
constexpr std::uint32_t kOneInOfSmall = 4;
constexpr std::uint32_t kReach = 4;
// Another order hits at most what LRU would hit without bounds. That lies beyond the reach of the
// curve, above all for small caches.
constexpr std::uint32_t kFollowedCapacities = 6;
constexpr std::uint32_t kFollowedCapacitiesOfSmall = 16;
constexpr std::uint32_t kFollowedOfSmall = 16'384;
// Blocks of the model of the cache's own size, and of the other models: the most that 4 MiB hold.
// With half as many, the curve errs by a seventh more.
constexpr std::uint32_t kModelBlocks = 3'760;
constexpr std::uint32_t kLargestModelBlocks = 2 * kModelBlocks;
// Between the models the gain over LRU is not linear: without those of half and twice the size the
// curve errs by up to 3 points there.
constexpr std::array<double, 5> kModelSizes = {4, 2, 1, 0.5, 0.25};  // times the cache's size
constexpr std::size_t kOwnSize = 2;                  // index of the cache's own size
constexpr std::size_t kChosen = kModelSizes.size();  // index of the shadow that follows the choice
// Remembered blocks that no model holds (13 bytes each), and requests (72 bytes each).
constexpr std::uint32_t kGhosts = 40'960;
constexpr std::uint32_t kRequests = 8'192;
constexpr std::uint64_t kHalfLifeCapacities = 16;
constexpr std::uint64_t kMinHalfLife = 262'144;
// Requests that wait for their end, and their blocks: more than run at a time.
constexpr std::size_t kWaitingRequests = 256;
constexpr std::size_t kWaitingBlocks = 8'192;
constexpr std::size_t kWindowBlocks = 12'288;  // per window; 8 to 12 bytes each
// A longer gap between requests is idle time, and says nothing about the rate under load.
constexpr std::int64_t kLongestGapMs = 60'000;
constexpr std::uint64_t kUnbounded = std::uint64_t{1} << 40U;

// The least power of two for which one in that many of the blocks fit.
std::uint32_t one_in(std::uint64_t blocks, std::uint32_t room) {
  return static_cast<std::uint32_t>(
      std::bit_ceil(std::max<std::uint64_t>(1, (blocks + room - 1) / room)));
}

StackDistances::Options distances_of(const CapacityCurve::Options& options) {
  const std::uint64_t blocks = options.capacity_blocks;
  const std::uint32_t most =
      options.eviction == EvictionKind::lru ? kFollowedBlocks : kFollowedBesideModels;
  const auto small = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      std::bit_floor(blocks / kBlocksOfWhichAllAreFollowed), 1, kOneInOfSmall));
  const std::uint32_t one = std::max(small, one_in(kReach * blocks, most));
  const std::uint64_t wanted =
      std::max(kFollowedCapacities * blocks / one,
               std::min<std::uint64_t>(kFollowedCapacitiesOfSmall * blocks, kFollowedOfSmall));
  return {.one_in = one,
          .max_blocks = static_cast<std::uint32_t>(
              std::clamp<std::uint64_t>(wanted, kMinFollowedBlocks, most)),
          .half_life_blocks = std::max(kMinHalfLife, kHalfLifeCapacities * blocks)};
}

}  // namespace

CapacityCurve::CapacityCurve(const Options& options)
    : options_(options),
      model_one_in_(
          std::max(distances_of(options).one_in, one_in(options.capacity_blocks, kModelBlocks))),
      distances_(distances_of(options)),
      choice_(std::max(1U, options.capacity_blocks / model_one_in_)) {
  for (Window& window : windows_) window.blocks.reserve(kWindowBlocks);
  if (options.eviction == EvictionKind::lru) return;
  std::vector<ShadowRoom::Size> rooms;
  for (const double size : kModelSizes) {
    const double capacity = std::ceil(size * static_cast<double>(options.capacity_blocks));
    const auto blocks = static_cast<std::uint64_t>(capacity);
    const std::uint32_t one = std::max(model_one_in_, one_in(blocks, kLargestModelBlocks));
    const auto room = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, blocks / one));
    if (samples_.empty() || samples_.back().one_in != one) {
      samples_.push_back({.one_in = one, .lru = LruCaches(room)});
    }
    models_.push_back(
        {.capacity_blocks = blocks, .room_blocks = room, .sample = samples_.size() - 1});
    rooms.push_back({.capacity_blocks = room, .one_in = one});
  }
  rooms.push_back(rooms[kOwnSize]);
  shadows_.emplace(ShadowCaches::Options{.eviction = options.eviction,
                                         .sizes = rooms,
                                         .ghost_blocks = kGhosts,
                                         .model_of_blocks = options.capacity_blocks,
                                         .max_requests = kRequests});
}

void CapacityCurve::asked(Request request) {
  ++requests_;
  std::uint64_t hubs = 0;
  for (const AskedBlock& block : request.followed) hubs += block.is_hub ? 1 : 0;
  const bool faded =
      distances_.request({.followed = request.followed, .others = request.blocks - hubs});
  note_time(request, faded);
  // The models and the window leave hubs out: any cache keeps them, and the result would depend on
  // which sample has them.
  const auto is_left_out = [this](const AskedBlock& block) {
    return block.is_hub || !is_sampled(block.key_hash, model_one_in_);
  };
  if (request.followed.empty() || is_left_out(request.followed.back())) request.has_last = false;
  std::erase_if(request.followed, is_left_out);
  waiting_blocks_ += request.followed.size();
  waiting_.push_back({.request = std::move(request), .end = {}});
  const bool awaits = !models_.empty() && waiting_.back().request.ticket != 0;
  if (!awaits) waiting_.back().end.emplace();
  while (!waiting_.empty() && (waiting_.front().end || waiting_.size() > kWaitingRequests ||
                               waiting_blocks_ > kWaitingBlocks)) {
    waiting_blocks_ -= waiting_.front().request.followed.size();
    update_models(waiting_.front().request, waiting_.front().end.value_or(RequestEnd{}));
    waiting_.pop_front();
  }
}

void CapacityCurve::ended(std::uint64_t ticket, const RequestEnd& end) {
  const auto found = std::ranges::find_if(
      waiting_, [ticket](const Waiting& one) { return one.request.ticket == ticket; });
  if (found != waiting_.end()) found->end = end;
}

void CapacityCurve::rename(std::uint64_t from, std::uint64_t to) {
  const auto found = std::ranges::find_if(
      waiting_, [from](const Waiting& one) { return one.request.ticket == from; });
  if (found != waiting_.end()) found->request.ticket = to;
}

void CapacityCurve::note_time(const Request& request, bool faded) {
  if (requests_ > 1) {
    const std::int64_t gap_ms = request.unix_ms - last_unix_ms_;
    seconds_ += static_cast<double>(std::clamp<std::int64_t>(gap_ms, 0, kLongestGapMs)) / 1000;
  }
  last_unix_ms_ = request.unix_ms;
  if (!faded) return;
  seconds_ *= StackDistances::kFade;
  for (Sample& sample : samples_) sample.asked_blocks *= StackDistances::kFade;
  for (Model& model : models_) model.more_hits *= StackDistances::kFade;
}

void CapacityCurve::update_models(const Request& request, const RequestEnd& end) {
  if (request.followed.empty()) {
    skipped_blocks_ += request.blocks;
    return;
  }
  Window* window = &windows_.back();
  if (window->blocks.size() + request.followed.size() > kWindowBlocks && !window->ends.empty()) {
    std::swap(windows_.front(), windows_.back());
    window->blocks.clear();
    window->ends.clear();
  }
  const std::size_t first = window->blocks.size();
  for (const AskedBlock& block : request.followed) window->blocks.push_back(block.key_hash);
  window->ends.push_back(static_cast<std::uint32_t>(window->blocks.size()));
  if (models_.empty()) return;
  const std::span<const std::uint64_t> blocks = std::span(window->blocks).subspan(first);
  const auto seen = static_cast<std::uint32_t>(blocks.size());
  const ShadowRequest shadow{.blocks = blocks,
                             .unix_ms = request.unix_ms,
                             .end = end,
                             .sample = RequestSample{.seen = seen,
                                                     .one_in = model_one_in_,
                                                     .skipped = std::exchange(skipped_blocks_, 0U),
                                                     .has_last = request.has_last},
                             .asked = request.blocks};
  for (Sample& sample : samples_) {
    sample.blocks.clear();
    std::ranges::copy_if(blocks, std::back_inserter(sample.blocks),
                         [&](std::uint64_t hash) { return is_sampled(hash, sample.one_in); });
    sample.lru.request(sample.blocks);
    sample.asked_blocks += static_cast<double>(sample.blocks.size());
  }
  shadows_->follow_lru(kChosen, choice_.follows_lru());
  shadows_->request(shadow);
  for (std::size_t i = 0; i < models_.size(); ++i) {
    models_[i].more_hits += more_than_lru(i, models_[i]);
  }
  const Model& own = models_[kOwnSize];
  choice_.add({.more_hits = more_than_lru(kOwnSize, own),
               .chosen_more_hits = more_than_lru(kChosen, own),
               .asked_blocks = 1.0 * seen});
}

// How many more blocks than LRU a shadow of the model's size found in the last request.
double CapacityCurve::more_than_lru(std::size_t shadow, const Model& model) const {
  return static_cast<double>(shadows_->hits(shadow)) -
         static_cast<double>(samples_[model.sample].lru.hits(model.room_blocks));
}

CapacityCurve::Point CapacityCurve::at(std::uint64_t capacity_blocks) const {
  const double lru = distances_.hit_rate(capacity_blocks);
  return {.lru = lru, .policy = std::clamp(lru + gain_at(capacity_blocks), 0.0, most())};
}

// The hit rate of a cache without bounds, as far as the curve reaches.
double CapacityCurve::most() const { return distances_.hit_rate(kUnbounded); }

// Over LRU. Interpolated between two models by the logarithm of their sizes; beyond them, the
// nearest model's gain.
double CapacityCurve::gain_at(std::uint64_t capacity_blocks) const {
  if (models_.empty()) return 0;
  const auto gain = [this](const Model& model) {
    const double asked_blocks = samples_[model.sample].asked_blocks;
    return asked_blocks > 0 ? distances_.share_of_others() * model.more_hits / asked_blocks : 0;
  };
  const Model* below = &models_.back();
  for (const Model& model : std::views::reverse(models_)) {
    if (capacity_blocks < model.capacity_blocks) {
      if (&model == below) return gain(model);
      const double way = std::log(static_cast<double>(capacity_blocks) /
                                  static_cast<double>(below->capacity_blocks)) /
                         std::log(static_cast<double>(model.capacity_blocks) /
                                  static_cast<double>(below->capacity_blocks));
      return (1 - way) * gain(*below) + way * gain(model);
    }
    below = &model;
  }
  return gain(*below);
}

double CapacityCurve::optimum() const {
  std::vector<ShadowRequest> requests;
  for (const Window& window : windows_) {
    std::size_t first = 0;
    for (const std::uint32_t end : window.ends) {
      requests.push_back({.blocks = std::span(window.blocks).subspan(first, end - first)});
      first = end;
    }
  }
  // Requests whose end has not come yet asked for their blocks all the same.
  std::vector<std::uint64_t> waiting;
  waiting.reserve(waiting_blocks_);
  for (const Waiting& one : waiting_) {
    const std::size_t first = waiting.size();
    for (const AskedBlock& block : one.request.followed) waiting.push_back(block.key_hash);
    requests.push_back({.blocks = std::span(waiting).subspan(first)});
  }
  const Point now = at(options_.capacity_blocks);
  std::uint64_t blocks = 0;
  for (const ShadowRequest& request : requests) blocks += request.blocks.size();
  if (blocks == 0) return now.policy;
  const std::uint32_t room = std::max(1U, options_.capacity_blocks / model_one_in_);
  LruCaches lru(room);
  std::uint64_t hits = 0;
  for (const ShadowRequest& request : requests) {
    lru.request(request.blocks);
    hits += lru.hits(room);
  }
  // Both begin empty, so only the order makes the difference.
  const double more = static_cast<double>(optimum_hits(requests, room)) - static_cast<double>(hits);
  const double optimum =
      now.lru + distances_.share_of_others() * more / static_cast<double>(blocks);
  return std::clamp(optimum, now.policy, std::max(now.policy, most()));
}

double CapacityCurve::blocks_per_s() const {
  return seconds_ > 0 ? distances_.asked_blocks() / seconds_ : 0;
}

std::uint64_t CapacityCurve::memory_bytes() const {
  std::uint64_t bytes = sizeof(*this) + distances_.memory_bytes();
  if (shadows_) bytes += shadows_->memory_bytes();
  for (const Sample& sample : samples_) {
    bytes += sample.lru.memory_bytes() + sample.blocks.capacity() * sizeof(std::uint64_t);
  }
  for (const Window& window : windows_) {
    bytes += window.blocks.capacity() * sizeof(std::uint64_t) +
             window.ends.capacity() * sizeof(std::uint32_t);
  }
  for (const Waiting& one : waiting_) {
    bytes += sizeof(one) + one.request.followed.capacity() * sizeof(AskedBlock);
  }
  return bytes;
}

}  // namespace cairn

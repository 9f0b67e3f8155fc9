#include "blockmgr/eviction/capacity_curve.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "blockmgr/eviction/optimum.hpp"

namespace cairn {
namespace {

// 33 bytes each; beside models so many that all is 4 MiB. The curve reaches four times the cache's
// size.
constexpr std::uint32_t kFollowedBlocks = 65'536;
constexpr std::uint32_t kFollowedBesideModels = 30'100;
constexpr std::uint32_t kMinFollowedBlocks = 1024;
// To follow every block of a small cache costs 35 ns a key, a fifth of a match over HTTP. One in
// four of 4,096 blocks or more errs by less than one in eight of 30,000 does.
constexpr std::uint32_t kBlocksOfWhichAllAreFollowed = 1024;
constexpr std::uint32_t kOneInOfSmall = 4;
constexpr std::uint32_t kReach = 4;
// What another order hits is at most what LRU would without bounds: that is more than the curve
// reaches, of small caches above all.
constexpr std::uint32_t kFollowedCapacities = 6;
constexpr std::uint32_t kFollowedCapacitiesOfSmall = 16;
constexpr std::uint32_t kFollowedOfSmall = 16'384;
// Blocks of the model that is as large as the cache: enough that chance moves its rate by less than
// a point. With 256 the curve errs as little, but the choice between orders (OrderChoice) is up to
// 2.6 points below LRU where the workload shifts.
constexpr std::uint32_t kModelBlocks = 1'880;
// Between the models the gain over LRU is no line: without those of half and twice the size the
// curve errs by up to 3 points there. Larger caches remember more: with half as many requests the
// largest errs by up to 2.
struct ModelSize {
  double of_cache = 0;
  std::uint32_t max_ghosts = 0;    // 13 bytes each
  std::uint32_t max_requests = 0;  // 72 bytes each
};
constexpr std::array<ModelSize, 5> kModelSizes = {{{0.25, 8'192, 2'048},
                                                   {0.5, 8'192, 2'048},
                                                   {1, 8'192, 2'048},
                                                   {2, 8'192, 4'096},
                                                   {4, 8'192, 4'096}}};
constexpr std::size_t kOwnSize = 2;  // of those: the cache's
constexpr std::uint64_t kHalfLifeCapacities = 16;
constexpr std::uint64_t kMinHalfLife = 262'144;
// Requests whose end is awaited, and blocks of theirs: more than run at a time.
constexpr std::size_t kWaitingRequests = 256;
constexpr std::size_t kWaitingBlocks = 16'384;
constexpr std::size_t kWindowBlocks = 12'288;  // 8 to 12 bytes each, in each half
// A gap between requests says nothing about how many come while there is work.
constexpr std::int64_t kLongestGapMs = 60'000;
constexpr std::uint64_t kUnbounded = std::uint64_t{1} << 40U;

// The power of two from which on so many blocks fit.
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
  for (const ModelSize& size : kModelSizes) {
    const auto capacity = static_cast<std::uint32_t>(
        std::ceil(size.of_cache * static_cast<double>(options.capacity_blocks)));
    const std::uint32_t ghosts =
        std::max<std::uint32_t>(65'536, 8 * std::min(capacity, 1U << 28)) / model_one_in_;
    const ShadowCache::Options model{.eviction = options.eviction,
                                     .capacity_blocks = std::max(1U, capacity / model_one_in_),
                                     .ghost_blocks = std::min(ghosts, size.max_ghosts),
                                     .model_of_blocks = capacity,
                                     .max_requests = size.max_requests};
    models_.push_back({.capacity_blocks = capacity,
                       .room_blocks = model.capacity_blocks,
                       .policy = ShadowCache(model)});
    if (models_.size() == kOwnSize + 1) chosen_.emplace(model);
  }
  lru_.emplace(models_.back().room_blocks);
}

void CapacityCurve::asked(Request request) {
  ++requests_;
  std::uint64_t hubs = 0;
  for (const AskedBlock& block : request.followed) hubs += block.is_hub ? 1 : 0;
  const bool faded =
      distances_.request({.followed = request.followed, .others = request.blocks - hubs});
  note_time(request, faded);
  // The models and the window have no hubs: those stay in any cache, and which sample has them
  // would decide.
  const auto is_left_out = [this](const AskedBlock& block) {
    return block.is_hub || (block.key_hash & (model_one_in_ - 1)) != 0;
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
    tell_models(waiting_.front().request, waiting_.front().end.value_or(RequestEnd{}));
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
  asked_of_models_ *= StackDistances::kFade;
  for (Model& model : models_) model.more_hits *= StackDistances::kFade;
}

void CapacityCurve::tell_models(const Request& request, const RequestEnd& end) {
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
  const auto told = static_cast<std::uint32_t>(blocks.size());
  const ShadowRequest shadow{.blocks = blocks,
                             .unix_ms = request.unix_ms,
                             .end = end,
                             .sample = RequestSample{.told = told,
                                                     .one_in = model_one_in_,
                                                     .skipped = std::exchange(skipped_blocks_, 0U),
                                                     .has_last = request.has_last},
                             .asked = request.blocks};
  lru_->request(blocks);
  asked_of_models_ += told;
  const auto more_than_lru = [&](ShadowCache& cache, std::uint32_t room_blocks) {
    return static_cast<double>(cache.request(shadow)) -
           static_cast<double>(lru_->hits(room_blocks));
  };
  for (std::size_t i = 0; i < models_.size(); ++i) {
    Model& model = models_[i];
    const double more_hits = more_than_lru(model.policy, model.room_blocks);
    model.more_hits += more_hits;
    if (i != kOwnSize) continue;
    chosen_->follow_lru(choice_.follows_lru());
    choice_.add({.more_hits = more_hits,
                 .chosen_more_hits = more_than_lru(*chosen_, model.room_blocks),
                 .asked_blocks = 1.0 * told});
  }
}

CapacityCurve::Point CapacityCurve::at(std::uint64_t capacity_blocks) const {
  const double lru = distances_.hit_rate(capacity_blocks);
  return {.lru = lru, .policy = std::clamp(lru + gain_at(capacity_blocks), 0.0, most())};
}

// What a cache without bounds would hit, as far as the curve reaches.
double CapacityCurve::most() const { return distances_.hit_rate(kUnbounded); }

// Over LRU: between two models by the logarithm of their sizes, beyond them as the next one's.
double CapacityCurve::gain_at(std::uint64_t capacity_blocks) const {
  if (models_.empty() || asked_of_models_ == 0) return 0;
  const auto gain = [this](const Model& model) {
    return distances_.share_of_others() * model.more_hits / asked_of_models_;
  };
  const Model* below = &models_.front();
  for (const Model& model : models_) {
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
  // Both begin with nothing, so what they differ by is the order alone.
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
  if (chosen_) bytes += chosen_->memory_bytes() + lru_->memory_bytes();
  for (const Model& model : models_) bytes += sizeof(Model) + model.policy.memory_bytes();
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

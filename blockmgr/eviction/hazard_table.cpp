#include "blockmgr/eviction/hazard_table.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace cairn {
namespace {

// Priors: this much weight counts as if it had behaved as expected. A request of n blocks weighs
// the cube root of n in total. Tuned on two public traces; nearby values do as well.
constexpr float kPooledPrior = 4;
constexpr float kFactorPrior = 2;
constexpr float kClassPrior = 20;
// b of a / (b + age), in widths of the first bucket.
constexpr float kLomaxOffset = 8;
constexpr float kMostWeight = 1e9F;     // a request weighs at most 10, and half after 1,000 others
constexpr float kLeastWeight = 1e-30F;  // below 1e-38 arithmetic is slow
constexpr float kMostHazard = 0.95F;    // an expectation is never certain

}  // namespace

HazardTable::HazardTable(const Shape& shape) : shape_(shape) {
  starts_.push_back(0);
  for (double start = shape.first_bucket_blocks; start < shape.max_age_blocks;
       start *= std::sqrt(2.0)) {
    starts_.push_back(static_cast<std::uint32_t>(start));
  }
  // Integer starts of a narrow first bucket may coincide.
  starts_.erase(std::unique(starts_.begin(), starts_.end()), starts_.end());
  for (std::size_t k = 0; k + 1 < starts_.size(); ++k) {
    widths_.push_back(static_cast<float>(starts_[k + 1] - starts_[k]));
  }
  widths_.push_back(static_cast<float>(std::max(starts_.back(), shape.first_bucket_blocks)) * 0.5F);
  cells_.resize(shape.classes * starts_.size());
  is_seen_.resize(shape.classes);
  expected_.resize(shape.classes);
  smoothed_.resize(cells_.size());
  sums_.resize(starts_.size());
  pooled_.resize(starts_.size());
  hazard_.resize(cells_.size());
  worth_.resize(cells_.size());
  rebuild();
}

std::uint32_t HazardTable::bucket_of(std::uint32_t age_blocks) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), age_blocks);
  return static_cast<std::uint32_t>(after - starts_.begin() - 1);
}

void HazardTable::fade(float factor) {
  const auto faded = [factor](float weight) { return weight < kLeastWeight ? 0 : weight * factor; };
  for (std::uint32_t c = 0; c < shape_.classes; ++c) {
    if (!is_seen_[c]) continue;
    for (Cell& cell : row(cells_, c)) {
      cell.used = faded(cell.used);
      cell.survived = faded(cell.survived);
    }
  }
}

// The first bucket is not smoothed: engines ask twice for one prompt, which is not a habit.
void HazardTable::smooth() {
  const std::uint32_t last = buckets() - 1;
  for (std::uint32_t c = 0; c < shape_.classes; ++c) {
    if (!is_seen_[c]) continue;
    const std::span<const Cell> from = row(cells_, c);
    const std::span<Cell> to = row(smoothed_, c);
    const auto mean = [&](const Cell& before, const Cell& here, const Cell& after) -> Cell {
      return {(before.used + here.used + after.used) / 3,
              (before.survived + here.survived + after.survived) / 3};
    };
    to[0] = from[0];
    for (std::uint32_t k = 1; k <= last; ++k) {
      to[k] = mean(from[k == 1 ? k : k - 1], from[k], from[k == last ? k : k + 1]);
    }
  }
}

void HazardTable::pool() {
  std::ranges::fill(sums_, Cell{});
  for (std::uint32_t c = 0; c < shape_.classes; ++c) {
    if (!is_seen_[c]) continue;
    const std::span<const Cell> cells = row(smoothed_, c);
    for (std::uint32_t k = 0; k < buckets(); ++k) {
      sums_[k].used += cells[k].used;
      sums_[k].survived += cells[k].survived;
    }
  }
  const float offset = kLomaxOffset * static_cast<float>(shape_.first_bucket_blocks);
  float used = 0;
  float expected = 0;
  for (std::uint32_t k = 0; k < buckets(); ++k) {
    pooled_[k] = widths_[k] / (offset + static_cast<float>(starts_[k]) + widths_[k] / 2);
    used += sums_[k].used;
    expected += sums_[k].seen() * pooled_[k];
  }
  // 1 without data: half of the blocks are used again by the age of `offset`.
  const float scale = (used + 1) / (expected + 1);
  for (std::uint32_t k = 0; k < buckets(); ++k) {
    const float prior = std::min(kMostHazard, scale * pooled_[k]);
    pooled_[k] = (sums_[k].used + kPooledPrior * prior) / (sums_[k].seen() + kPooledPrior);
  }
}

void HazardTable::rebuild_hazard(std::uint32_t of_class) {
  const std::span<const Cell> cells = row(smoothed_, of_class);
  const std::span<float> hazard = row(hazard_, of_class);
  const Expected& given = expected_[of_class];
  const auto factor_of = [&given](float used, float expected) {
    return (used + kFactorPrior * given.factor) / (expected + kFactorPrior);
  };
  float all_used = 0;
  float all_expected = 0;
  for (std::uint32_t k = 0; k < buckets(); ++k) {
    all_used += cells[k].used;
    all_expected += cells[k].seen() * pooled_[k];
  }
  const float factor = factor_of(all_used, all_expected);
  for (std::uint32_t k = 0; k < buckets(); ++k) {
    const float own =
        given.by_age ? factor_of(cells[k].used, cells[k].seen() * pooled_[k]) : factor;
    const float prior = std::min(kMostHazard, own * pooled_[k]);
    hazard[k] = (cells[k].used + kClassPrior * prior) / (cells[k].seen() + kClassPrior);
  }
}

// From the oldest age down: a stretch absorbs the next one as long as that raises the uses per
// holding time. The next stretches were found in the same way, so each is looked at once.
void HazardTable::rebuild_worth(std::uint32_t of_class) {
  const std::span<const float> hazard = row(hazard_, of_class);
  const std::span<float> worth = row(worth_, of_class);
  stretches_.clear();
  for (std::uint32_t k = buckets(); k-- > 0;) {
    // A block that is used in a bucket is held for half of it.
    Stretch from{
        .uses = hazard[k], .held = (1 - hazard[k] / 2) * widths_[k], .left = 1 - hazard[k]};
    while (!stretches_.empty()) {
      const Stretch& next = stretches_.back();
      if (next.uses * from.held <= from.uses * next.held) break;
      from.uses += from.left * next.uses;
      from.held += from.left * next.held;
      from.left *= next.left;
      stretches_.pop_back();
    }
    worth[k] = from.uses / from.held;
    stretches_.push_back(from);
  }
}

// The first class that also has no data, with the same expectation. The class itself if it has
// data.
std::uint32_t HazardTable::like_unseen(std::uint32_t of_class) const {
  for (std::uint32_t c = 0; c < of_class && !is_seen_[of_class]; ++c) {
    if (!is_seen_[c] && expected_[c].factor == expected_[of_class].factor) return c;
  }
  return of_class;
}

void HazardTable::rebuild() {
  smooth();
  pool();
  for (std::uint32_t c = 0; c < shape_.classes; ++c) {
    if (const std::uint32_t like = like_unseen(c); like < c) {
      std::ranges::copy(row(hazard_, like), row(hazard_, c).begin());
      std::ranges::copy(row(worth_, like), row(worth_, c).begin());
      continue;
    }
    rebuild_hazard(c);
    rebuild_worth(c);
  }
}

namespace {

// Precedes the weights. If the meaning of a class or an age changes, the version must change.
struct LearntHead {
  std::uint32_t version = 1;
  std::uint32_t classes = 0;
  std::uint32_t buckets = 0;
  std::uint32_t first_bucket_blocks = 0;
};

}  // namespace

std::vector<std::byte> HazardTable::learnt() const {
  const LearntHead head{.classes = shape_.classes,
                        .buckets = buckets(),
                        .first_bucket_blocks = shape_.first_bucket_blocks};
  const auto weights = std::as_bytes(std::span(cells_));
  std::vector<std::byte> bytes(sizeof(head) + weights.size());
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::ranges::copy(weights, bytes.begin() + sizeof(head));
  return bytes;
}

bool HazardTable::take_learnt(std::span<const std::byte> learnt) {
  LearntHead head;
  if (learnt.size() < sizeof(head)) return false;
  std::memcpy(&head, learnt.data(), sizeof(head));
  learnt = learnt.subspan(sizeof(head));
  const bool is_alike = head.version == LearntHead{}.version && head.classes == shape_.classes &&
                        head.first_bucket_blocks == shape_.first_bucket_blocks &&
                        learnt.size() == std::uint64_t{head.classes} * head.buckets * sizeof(Cell);
  if (!is_alike) return false;
  std::vector<Cell> cells(std::size_t{head.classes} * head.buckets);
  std::memcpy(cells.data(), learnt.data(), learnt.size());
  const auto is_weight = [](float weight) { return weight >= 0 && weight < kMostWeight; };
  for (const Cell& cell : cells) {
    if (!is_weight(cell.used) || !is_weight(cell.survived)) return false;
  }
  const std::size_t both = std::min(head.buckets, buckets());
  for (std::size_t c = 0; c < head.classes; ++c) {
    const auto learnt_row = std::span(cells).subspan(c * head.buckets, both);
    std::ranges::copy(learnt_row, row(cells_, static_cast<std::uint32_t>(c)).begin());
    const auto has_weight = [](const Cell& cell) { return cell.seen() > 0; };
    if (std::ranges::any_of(learnt_row, has_weight)) is_seen_[c] = 1;
  }
  rebuild();
  return true;
}

std::uint64_t HazardTable::memory_bytes() const {
  return cells_.size() * 2 * (sizeof(Cell) + sizeof(float)) +
         starts_.size() * (sizeof(std::uint32_t) + 2 * sizeof(float) + sizeof(Cell));
}

}  // namespace cairn

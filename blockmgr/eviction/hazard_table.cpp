#include "blockmgr/eviction/hazard_table.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace cairn {
namespace {

// So much weight counts as if it had been seen to behave as expected. A request of n blocks weighs
// the cube root of n in all. Found on two public traces, and flat around there.
constexpr float kPooledPrior = 4;
constexpr float kFactorPrior = 2;
constexpr float kClassPrior = 20;
// b of a / (b + age), in widths of the first bucket.
constexpr float kLomaxOffset = 8;
constexpr float kMostWeight = 1e9F;     // a request weighs 10 at most, and half after 1,000 others
constexpr float kLeastWeight = 1e-30F;  // what fades for ever costs much below 1e-38
constexpr float kMostHazard = 0.95F;    // what is only expected is never certain

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
  expected_factors_.resize(shape.classes, 1);
  hazard_.resize(cells_.size());
  worth_.resize(cells_.size());
  rebuild();
}

std::uint32_t HazardTable::bucket_of(std::uint32_t age_blocks) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), age_blocks);
  return static_cast<std::uint32_t>(after - starts_.begin() - 1);
}

void HazardTable::fade(float factor) {
  for (Cell& cell : cells_) {
    const auto faded = [factor](float weight) {
      return weight < kLeastWeight ? 0 : weight * factor;
    };
    cell.used = faded(cell.used);
    cell.survived = faded(cell.survived);
  }
}

// The first bucket stays as it is: engines ask twice for one prompt, and that is no habit.
std::vector<HazardTable::Cell> HazardTable::smoothed() const {
  std::vector<Cell> smooth = cells_;
  for (std::uint32_t c = 0; c < shape_.classes; ++c) {
    const Cell* row = &cells_[c * buckets()];
    for (std::uint32_t k = 1; k < buckets(); ++k) {
      const Cell& before = row[k == 1 ? k : k - 1];
      const Cell& after = row[k + 1 == buckets() ? k : k + 1];
      smooth[c * buckets() + k] = {(before.used + row[k].used + after.used) / 3,
                                   (before.survived + row[k].survived + after.survived) / 3};
    }
  }
  return smooth;
}

std::vector<float> HazardTable::pooled(const std::vector<Cell>& cells) const {
  std::vector<Cell> sums(buckets());
  std::vector<float> curve(buckets());
  const float offset = kLomaxOffset * static_cast<float>(shape_.first_bucket_blocks);
  float used = 0;
  float expected = 0;
  for (std::uint32_t k = 0; k < buckets(); ++k) {
    for (std::uint32_t c = 0; c < shape_.classes; ++c) {
      sums[k].used += cells[c * buckets() + k].used;
      sums[k].survived += cells[c * buckets() + k].survived;
    }
    curve[k] = widths_[k] / (offset + static_cast<float>(starts_[k]) + widths_[k] / 2);
    used += sums[k].used;
    expected += sums[k].seen() * curve[k];
  }
  // 1 until something was seen: half of the blocks are used again by the age of `offset`.
  const float scale = (used + 1) / (expected + 1);
  for (std::uint32_t k = 0; k < buckets(); ++k) {
    const float prior = std::min(kMostHazard, scale * curve[k]);
    curve[k] = (sums[k].used + kPooledPrior * prior) / (sums[k].seen() + kPooledPrior);
  }
  return curve;
}

void HazardTable::rebuild_hazard(std::uint32_t of_class, std::span<const Cell> cells,
                                 std::span<const float> pooled, std::span<float> hazard) const {
  float used = 0;
  float expected = 0;
  for (std::uint32_t k = 0; k < buckets(); ++k) {
    used += cells[k].used;
    expected += cells[k].seen() * pooled[k];
  }
  const float factor =
      (used + kFactorPrior * expected_factors_[of_class]) / (expected + kFactorPrior);
  for (std::uint32_t k = 0; k < buckets(); ++k) {
    const float prior = std::min(kMostHazard, factor * pooled[k]);
    hazard[k] = (cells[k].used + kClassPrior * prior) / (cells[k].seen() + kClassPrior);
  }
}

// From the oldest age down: what follows is taken along as long as that raises the uses by the time
// of holding. What follows is in stretches that were found best in the same way, so each is looked
// at once.
void HazardTable::rebuild_worth(std::span<const float> hazard, std::span<float> worth) {
  stretches_.clear();
  for (std::uint32_t k = buckets(); k-- > 0;) {
    // What is used in a bucket is held for half of it.
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

// The first of which as little is known: nothing but what is expected. Itself, where something is.
std::uint32_t HazardTable::like_unseen(std::uint32_t of_class) const {
  for (std::uint32_t c = 0; c < of_class && !is_seen_[of_class]; ++c) {
    if (!is_seen_[c] && expected_factors_[c] == expected_factors_[of_class]) return c;
  }
  return of_class;
}

void HazardTable::rebuild() {
  const std::vector<Cell> cells = smoothed();
  const std::vector<float> curve = pooled(cells);
  for (std::uint32_t c = 0; c < shape_.classes; ++c) {
    const std::size_t first = std::size_t{c} * buckets();
    if (const std::uint32_t like = like_unseen(c); like < c) {
      std::copy_n(&hazard_[std::size_t{like} * buckets()], buckets(), &hazard_[first]);
      std::copy_n(&worth_[std::size_t{like} * buckets()], buckets(), &worth_[first]);
      continue;
    }
    const std::span hazard = std::span(hazard_).subspan(first, buckets());
    rebuild_hazard(c, std::span(cells).subspan(first, buckets()), curve, hazard);
    rebuild_worth(hazard, std::span(worth_).subspan(first, buckets()));
  }
}

namespace {

// In front of the weights. What a class or an age means is the program's: another meaning is
// another version.
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
    std::copy_n(&cells[c * head.buckets], both, &cells_[c * buckets()]);
    is_seen_[c] = 1;
  }
  rebuild();
  return true;
}

std::uint64_t HazardTable::memory_bytes() const {
  return cells_.size() * (sizeof(Cell) + 2 * sizeof(float)) +
         starts_.size() * (sizeof(std::uint32_t) + sizeof(float));
}

}  // namespace cairn

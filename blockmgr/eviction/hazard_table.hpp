#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn {

// Learns how likely blocks are to be used again, by class and age, from blocks that were and blocks
// that were not. From that it computes the worth of keeping a block of a class at an age.
//
// Ages are counted in requested blocks, in buckets that widen by half an octave. If a weight U was
// used again in a bucket and a weight S lived through it, its hazard is U / (U + S). Both are
// averaged with the neighbouring buckets. One class has little data, so its hazards are drawn
// towards those of all classes together, times a factor of the class. Those of all classes are
// drawn towards a curve a / (b + age), the hazard of Lomax's distribution: uses become rarer with
// age. A hinted class (expect()) has a separate factor for each age.
//
// The worth of keeping a block from an age on is its expected uses divided by the expected holding
// time, at the best of all ages at which it could be given up. This is Gittins' index of a block
// that is released when it is used or given up.
//
// Not thread-safe.
class HazardTable {
 public:
  struct Shape {
    std::uint32_t classes = 0;
    std::uint32_t first_bucket_blocks = 64;  // the width of bucket 0
    std::uint32_t max_age_blocks = 0;        // the last bucket begins here or before
  };
  explicit HazardTable(const Shape& shape);

  std::uint32_t buckets() const { return static_cast<std::uint32_t>(starts_.size()); }
  std::uint32_t bucket_of(std::uint32_t age_blocks) const;
  std::uint32_t start_of(std::uint32_t bucket) const { return starts_[bucket]; }

  struct Place {
    std::uint32_t of_class = 0;
    std::uint32_t bucket = 0;
  };
  void used_again(Place at, float weight) { cell(at).used += weight; }
  // Adds the weight to that bucket and those after it, `buckets` in all.
  void lived_through(Place at, std::uint32_t buckets, float weight) {
    for (Cell* cell = &this->cell(at); buckets > 0; --buckets) (cell++)->survived += weight;
  }
  // Sets a hint for a class: its blocks are used `factor` times as often as those of all classes,
  // at each age until there is data for that age. A block that is used late is not used for long,
  // and that says nothing about later ages.
  void expect(std::uint32_t of_class, float factor) {
    expected_[of_class] = {.factor = factor, .by_age = true};
  }
  // Multiplies all learnt weights by the factor.
  void fade(float factor);
  // Recomputes hazards and worth from the weights. About 15 us for 38 classes.
  void rebuild();
  float worth(Place at) const { return worth_[at.of_class * buckets() + at.bucket]; }
  float hazard(Place at) const { return hazard_[at.of_class * buckets() + at.bucket]; }
  std::uint64_t memory_bytes() const;
  // All weights, for take_learnt() of a table of the same classes. The other table may have fewer
  // or more ages: the common buckets begin alike.
  std::vector<std::byte> learnt() const;
  // Returns false, unchanged, if these are not the weights of such a table.
  bool take_learnt(std::span<const std::byte> learnt);

 private:
  struct Cell {
    float used = 0;
    float survived = 0;
    float seen() const { return used + survived; }
  };
  Cell& cell(Place at) {
    is_seen_[at.of_class] = 1;
    return cells_[at.of_class * buckets() + at.bucket];
  }
  std::uint32_t like_unseen(std::uint32_t of_class) const;
  // One class's buckets of a table by class and bucket.
  template <class Value>
  auto row(std::vector<Value>& values, std::uint32_t of_class) const {
    return std::span(values).subspan(std::size_t{of_class} * buckets(), buckets());
  }
  void smooth();
  void pool();
  void rebuild_hazard(std::uint32_t of_class);
  void rebuild_worth(std::uint32_t of_class);

  Shape shape_;
  std::vector<std::uint32_t> starts_;
  std::vector<float> widths_;
  std::vector<Cell> cells_;
  struct Expected {
    float factor = 1;
    bool by_age = false;
  };
  std::vector<Expected> expected_;     // by class
  std::vector<std::uint8_t> is_seen_;  // by class: it has weights
  // Results of rebuild(). Rows of classes without weights are zero in smoothed_.
  std::vector<Cell> smoothed_;
  std::vector<Cell> sums_;     // of all classes
  std::vector<float> pooled_;  // hazards of all classes together
  std::vector<float> hazard_;
  std::vector<float> worth_;
  // From some age to the end of the stretch: the expected uses, the holding time, and the share
  // that lives on.
  struct Stretch {
    float uses = 0;
    float held = 0;
    float left = 0;
  };
  std::vector<Stretch> stretches_;  // scratch space of rebuild_worth()
};

}  // namespace cairn

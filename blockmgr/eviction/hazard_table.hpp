#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn {

// How likely blocks are to be used again, by class and by age, learnt from those that were and
// those that were not; and from that what it is worth to keep a block of some class at some age.
//
// Ages are counted in blocks requested, and fall into buckets that widen by half an octave. In a
// bucket, of a weight U that was used again and a weight S that lived through it, the share
// U / (U + S) is the hazard; both are averaged with the buckets beside it. A class sees little, so
// its hazards are drawn towards that of all classes together times a factor of the class, and the
// one of all classes towards a curve a / (b + age), the hazard of Lomax's distribution: uses become
// rarer the longer they stay out. Of a class of which it was said when it is used (expect()) each
// age has a factor of its own.
//
// The worth of keeping a block from an age on is the largest, over all ages at which it could be
// given up, of the uses to be expected until then by the time that it is to be held: Gittins' index
// of a block that is let go when it is used or given up.
//
// Not thread-safe.
class HazardTable {
 public:
  struct Shape {
    std::uint32_t classes = 0;
    std::uint32_t first_bucket_blocks = 64;  // the width of bucket 0
    std::uint32_t max_age_blocks = 0;        // the last bucket begins there or before
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
  // That bucket and those behind it, so many in all.
  void lived_through(Place at, std::uint32_t buckets, float weight) {
    for (Cell* cell = &this->cell(at); buckets > 0; --buckets) (cell++)->survived += weight;
  }
  // Of a class of which somebody has said when its blocks are used: so many times as often as those
  // of all classes, at each age until it has been seen how often at that age. What comes late is
  // not used for long, and that says nothing of later ages.
  void expect(std::uint32_t of_class, float factor) {
    expected_[of_class] = {.factor = factor, .by_age = true};
  }
  // What was learnt counts less from now on, by that factor.
  void fade(float factor);
  // Takes what was learnt into the worth. Some 15 us for 38 classes.
  void rebuild();
  float worth(Place at) const { return worth_[at.of_class * buckets() + at.bucket]; }
  float hazard(Place at) const { return hazard_[at.of_class * buckets() + at.bucket]; }
  std::uint64_t memory_bytes() const;
  // All weights, to be taken by a table of the same classes. That may have fewer ages or more:
  // those that both have begin alike.
  std::vector<std::byte> learnt() const;
  // False, and nothing has changed, where these are not the weights of such a table.
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
  // Of what lies by class and bucket, the buckets of a class.
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
  // What rebuild() makes of them. Rows of classes without weights are zero in the first.
  std::vector<Cell> smoothed_;
  std::vector<Cell> sums_;     // of all classes
  std::vector<float> pooled_;  // hazards of all classes together
  std::vector<float> hazard_;
  std::vector<float> worth_;
  // From some age on: the uses to be expected until it ends, the time of holding, and the share
  // that lives on.
  struct Stretch {
    float uses = 0;
    float held = 0;
    float left = 0;
  };
  std::vector<Stretch> stretches_;  // while the worth is rebuilt
};

}  // namespace cairn

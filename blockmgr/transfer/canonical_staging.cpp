#include "blockmgr/transfer/canonical_staging.hpp"

#include "layouts/builder.hpp"

namespace cairn {
namespace {

// As device copies and direct disk I/O need it.
constexpr std::uint64_t kAlignment = 4096;

LayoutConfig one_block(LayoutConfig shape) {
  shape.alignment = kAlignment;
  shape.num_blocks = 1;
  return shape;
}

}  // namespace

CanonicalStaging::CanonicalStaging(DeviceRuntime& runtime, PinnedPool& pool,
                                   const LayoutConfig& shape)
    : runtime_(runtime), pool_(pool), shape_(one_block(shape)) {}

void CanonicalStaging::acquire(Done<Block> done) {
  pool_.acquire(
      Geometry::fully_contiguous(shape_).region_bytes(),
      [shape = shape_, done = std::move(done)](Result<PinnedPool::Slot> slot) mutable {
        if (!slot) return done(std::move(slot).error());
        std::vector<RegionView> memory{slot->view()};
        auto layout =
            LayoutBuilder().config(shape).fully_contiguous().with_memory_regions(memory).build();
        if (!layout) return done(std::move(layout).error());
        done(Block(std::move(*slot), std::move(*layout)));
      });
}

Result<const BlockLayout*> CanonicalStaging::zeros() {
  MutexLock lock(mutex_);
  if (!zeros_) {
    auto layout =
        LayoutBuilder().config(shape_).fully_contiguous().allocate_pinned(runtime_, {}).build();
    if (!layout && runtime_.lost()) {
      layout = LayoutBuilder().config(shape_).fully_contiguous().allocate_system().build();
    }
    if (!layout) return std::move(layout).error();
    zeros_.emplace(std::move(*layout));
  }
  return &*zeros_;
}

}  // namespace cairn

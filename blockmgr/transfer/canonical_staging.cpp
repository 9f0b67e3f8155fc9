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
                                   std::vector<LayoutConfig> shapes)
    : runtime_(runtime), pool_(pool), shapes_(std::move(shapes)) {
  for (LayoutConfig& shape : shapes_) shape = one_block(shape);
  zeros_.resize(shapes_.size());
}

void CanonicalStaging::acquire(KvGroupNumber kv_group, Done<Block> done) {
  pool_.acquire(
      Geometry::fully_contiguous(shapes_[kv_group]).region_bytes(),
      [shape = shapes_[kv_group], done = std::move(done)](Result<PinnedPool::Slot> slot) mutable {
        if (!slot) return done(std::move(slot).error());
        std::vector<RegionView> memory{slot->view()};
        auto layout =
            LayoutBuilder().config(shape).fully_contiguous().with_memory_regions(memory).build();
        if (!layout) return done(std::move(layout).error());
        done(Block(std::move(*slot), std::move(*layout)));
      });
}

Result<const BlockLayout*> CanonicalStaging::zeros(KvGroupNumber kv_group) {
  const LayoutConfig& shape = shapes_[kv_group];
  MutexLock lock(mutex_);
  std::optional<BlockLayout>& zeros = zeros_[kv_group];
  if (!zeros) {
    auto layout =
        LayoutBuilder().config(shape).fully_contiguous().allocate_pinned(runtime_, {}).build();
    if (!layout && runtime_.lost()) {
      layout = LayoutBuilder().config(shape).fully_contiguous().allocate_system().build();
    }
    if (!layout) return std::move(layout).error();
    zeros.emplace(std::move(*layout));
  }
  return &*zeros;
}

}  // namespace cairn

#include "blockmgr/core/tier_space.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/checked.hpp"
#include "layouts/builder.hpp"

namespace cairn {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

// The whole pages that hold a part's blocks from `block` on.
std::vector<RegionView::Part> pages_from(const BlockLayout& layout, std::uint64_t block) {
  const Geometry& geometry = layout.geometry();
  const std::uint64_t blocks = layout.config().num_blocks;
  const std::byte* const memory = layout.owned().front().data();
  std::vector<RegionView::Part> pages;
  const auto add = [&](PieceLocation first, std::uint64_t size_bytes) {
    const std::uint64_t begin = static_cast<std::uint64_t>(layout.address(first) - memory);
    const std::uint64_t from = checked_align_up(begin, kPageBytes).value();
    const std::uint64_t to = (begin + size_bytes) / kPageBytes * kPageBytes;
    if (from < to) pages.push_back({.offset_bytes = from, .size_bytes = to - from});
  };
  if (block == blocks) return pages;
  const std::uint64_t all_bytes = (blocks - block) * geometry.block_stride_bytes();
  const bool by_layer = geometry.kind() == LayoutKind::layer_separate;
  const bool by_outer = by_layer && geometry.block_dim() == BlockDim::second;
  for (std::uint64_t layer = 0; layer < (by_layer ? layout.config().num_layers : 1); ++layer) {
    for (std::uint64_t outer = 0; outer < (by_outer ? layout.config().outer_dim : 1); ++outer) {
      add(geometry.locate({.block = block, .layer = layer, .outer = outer}), all_bytes);
    }
  }
  return pages;
}

// The memory's whole pages that are not named. Bytes after them only pad it for alignment.
std::vector<PagePopulator::Bytes> pages_besides(const BlockLayout& layout,
                                                const std::vector<RegionView::Part>& named) {
  const Region& memory = layout.owned().front();
  const PagePopulator::Bytes all(memory.data(), memory.size_bytes() / kPageBytes * kPageBytes);
  std::vector<PagePopulator::Bytes> rest;
  std::uint64_t at = 0;
  for (const RegionView::Part& part : named) {
    if (at < part.offset_bytes) rest.push_back(all.subspan(at, part.offset_bytes - at));
    at = part.offset_bytes + part.size_bytes;
  }
  if (at < all.size()) rest.push_back(all.subspan(at));
  return rest;
}

}  // namespace

TierSpace::TierSpace(BlockLayout layout, std::vector<LayoutConfig> shapes,
                     std::vector<PreparedMemory> prepared, PagePopulator* populator)
    : shapes_(std::move(shapes)),
      populator_(populator),
      parts_(one_part(std::move(layout), std::move(prepared))),
      first_(parts_.front().layout.get()) {
  join_parts();
  populate(parts_.front(), {});
}

std::vector<TierSpace::Part> TierSpace::one_part(BlockLayout layout,
                                                 std::vector<PreparedMemory> prepared) {
  std::vector<Part> parts;
  parts.push_back({std::make_unique<BlockLayout>(std::move(layout)), std::move(prepared)});
  return parts;
}

std::optional<SharedFilePlace> TierSpace::next_place() const {
  const Geometry& geometry = first_->geometry();
  if (!in_one_file() || geometry.kind() != LayoutKind::fully_contiguous) return std::nullopt;
  const Region& memory = first_->owned().front();
  const auto begin = static_cast<std::uint64_t>(first_->regions().front().data() - memory.data());
  const std::uint64_t end = begin + room() * geometry.block_stride_bytes();
  if (memory.shared_fd() < 0 || end % kPageBytes != 0) return std::nullopt;
  return SharedFilePlace{.fd = memory.shared_fd(), .offset_bytes = end};
}

void TierSpace::populate(Part& part, const std::vector<RegionView::Part>& besides) {
  if (populator_ == nullptr) return;
  auto pages = populator_->begin(pages_besides(*part.layout, besides));
  MutexLock lock(reading_pages_);
  part.pages = std::move(pages);
}

std::optional<std::uint64_t> TierSpace::populated_bytes() const {
  if (populator_ == nullptr) return std::nullopt;
  MutexLock lock(reading_pages_);
  std::uint64_t populated = 0;
  for (const Part& part : parts_) {
    if (part.pages) populated += part.pages->populated_bytes();
  }
  return populated;
}

void TierSpace::publish(std::unique_ptr<const BlockLayout> slots) {
  kept_.push_back(std::move(slots));
  publish(*kept_.back());
}

void TierSpace::publish(const BlockLayout& slots) {
  const BlockLayout* by_group = &slots;
  if (!shapes_.empty()) {
    auto layouts = std::make_unique<std::vector<BlockLayout>>();
    for (const LayoutConfig& shape : shapes_) {
      layouts->push_back(LayoutBuilder().config(shape).in_slots_of(slots).build().value());
    }
    kept_by_group_.push_back(std::move(layouts));
    by_group = kept_by_group_.back()->data();
  }
  slots_.store(&slots, std::memory_order_release);
  current_.store(by_group, std::memory_order_release);
}

void TierSpace::join_parts() {
  if (in_one_part()) return publish(*parts_.front().layout);
  std::vector<const BlockLayout*> layouts;
  for (const Part& part : parts_) layouts.push_back(part.layout.get());
  publish(std::make_unique<const BlockLayout>(BlockLayout::joined(layouts)));
}

void TierSpace::add(BlockLayout more, std::vector<PreparedMemory> prepared, bool follows) {
  CAIRN_ASSERT(may_have_more_parts(), "a tier would have parts without a bound");
  Part part{std::make_unique<BlockLayout>(std::move(more)), std::move(prepared)};
  populate(part, {});
  in_one_file_.store(in_one_file() && follows, std::memory_order_release);
  {
    MutexLock lock(reading_pages_);
    parts_.push_back(std::move(part));
  }
  join_parts();
}

void TierSpace::set_files(BlockLayout layout) {
  publish(std::make_unique<const BlockLayout>(std::move(layout)));
}

Result<> TierSpace::keep_below(std::uint32_t slots) {
  std::uint64_t first = 0;  // of the last part
  std::size_t used = 1;
  for (std::size_t i = 0; i + 1 < parts_.size(); ++i) {
    const std::uint64_t end = first + parts_[i].layout->config().num_blocks;
    if (end >= slots) break;
    first = end;
    ++used;
  }
  if (used < parts_.size()) {
    std::vector<Part> going;
    {
      MutexLock lock(reading_pages_);
      const auto first_going = parts_.begin() + static_cast<long>(used);
      going.assign(std::make_move_iterator(first_going), std::make_move_iterator(parts_.end()));
      parts_.resize(used);
    }
    if (in_one_part()) in_one_file_.store(true, std::memory_order_release);
    join_parts();
  }
  BlockLayout& last = *parts_.back().layout;
  const std::uint64_t kept = std::min<std::uint64_t>(slots - first, last.config().num_blocks);
  const std::vector<RegionView::Part> going = pages_from(last, kept);
  // The populator must not allocate pages that are being returned.
  std::unique_ptr<PagePopulator::Task> pages;
  {
    MutexLock lock(reading_pages_);
    pages.swap(parts_.back().pages);
  }
  pages.reset();
  auto gone = last.owned().front().let_go(going);
  if (!gone) return std::move(gone).error();
  populate(parts_.back(), *gone ? going : std::vector<RegionView::Part>{});
  return {};
}

}  // namespace cairn

#include "layouts/copy_plan.hpp"

#include <algorithm>
#include <tuple>

#include "base/assert.hpp"

namespace cairn {
namespace {

// Splits a block into layers * outers runs of `run_bytes`, contiguous on both sides.
struct Runs {
  std::uint64_t layers = 1;
  std::uint64_t outers = 1;
  std::uint64_t run_bytes = 0;
};

Runs runs_of(const Geometry& a, const Geometry& b) {
  if (a.layers_touch() && b.layers_touch()) return {1, 1, a.block_bytes()};
  const std::uint64_t layers = a.config().num_layers;
  const std::uint64_t outers = a.config().outer_dim;
  if (a.outers_touch() && b.outers_touch()) return {layers, 1, outers * a.piece_bytes()};
  return {layers, outers, a.piece_bytes()};
}

// Blocks source, source+1, … go to destination, destination+1, …
struct BlockRange {
  std::uint64_t source = 0;
  std::uint64_t destination = 0;
  std::uint64_t count = 0;
};

bool before_by_source(const BlockPair& a, const BlockPair& b) {
  return std::tie(a.source, a.destination) < std::tie(b.source, b.destination);
}

std::vector<BlockPair> sorted_by_source(std::span<const BlockPair> pairs) {
  std::vector<BlockPair> sorted(pairs.begin(), pairs.end());
  if (!std::ranges::is_sorted(sorted, before_by_source))
    std::ranges::sort(sorted, before_by_source);
  return sorted;
}

// True if a source goes to several destinations. Then spans that join may not be neighbours when
// sorted by source.
bool fans_out(std::span<const BlockPair> sorted) {
  return std::ranges::adjacent_find(sorted, {}, &BlockPair::source) != sorted.end();
}

// Ranges sorted by source. If blocks do not join, each is its own range.
std::vector<BlockRange> ranges_of(std::span<const BlockPair> sorted, bool blocks_join,
                                  const Geometry& source, const Geometry& destination) {
  std::vector<BlockRange> ranges;
  for (const BlockPair& pair : sorted) {
    if (blocks_join && !ranges.empty()) {
      BlockRange& last = ranges.back();
      if (last.source + last.count == pair.source &&
          last.destination + last.count == pair.destination && !source.begins_part(pair.source) &&
          !destination.begins_part(pair.destination)) {
        ++last.count;
        continue;
      }
    }
    ranges.push_back({pair.source, pair.destination, 1});
  }
  return ranges;
}

bool touch(const CopySpan& a, const CopySpan& b) {
  return a.source.region == b.source.region && a.destination.region == b.destination.region &&
         a.source.offset_bytes + a.size_bytes == b.source.offset_bytes &&
         a.destination.offset_bytes + a.size_bytes == b.destination.offset_bytes;
}

// Joins contiguous spans. REQUIRES: contiguous spans are neighbours in the vector.
void join(std::vector<CopySpan>& spans, std::size_t first) {
  std::size_t last = first;
  for (std::size_t i = first + 1; i < spans.size(); ++i) {
    if (touch(spans[last], spans[i])) {
      spans[last].size_bytes += spans[i].size_bytes;
    } else {
      spans[++last] = spans[i];
    }
  }
  if (first < spans.size()) spans.resize(last + 1);
}

void sort_by_source(std::span<CopySpan> spans) {
  std::ranges::sort(spans, {},
                    [](const CopySpan& span) { return std::tie(span.source, span.destination); });
}

// The distance between the sides is constant along a run, so contiguous spans become neighbours.
void sort_by_distance(std::span<CopySpan> spans) {
  std::ranges::sort(spans, {}, [](const CopySpan& span) {
    // Wraps around; only compared.
    const std::uint64_t distance = span.destination.offset_bytes - span.source.offset_bytes;
    return std::tuple(span.source.region, span.destination.region, distance,
                      span.source.offset_bytes);
  });
}

}  // namespace

void plan_copy(const Geometry& source, const Geometry& destination,
               std::span<const BlockPair> pairs, std::vector<CopySpan>& spans) {
  CAIRN_ASSERT(same_shape(source.config(), destination.config()),
               "bytes of one shape would be read as another's");
  const Runs runs = runs_of(source, destination);
  const bool blocks_join = source.block_stride_bytes() == runs.run_bytes &&
                           destination.block_stride_bytes() == runs.run_bytes;
  const std::vector<BlockPair> sorted = sorted_by_source(pairs);
  const std::vector<BlockRange> ranges = ranges_of(sorted, blocks_join, source, destination);
  const std::size_t first = spans.size();
  spans.reserve(first + ranges.size() * runs.layers * runs.outers);
  const auto add = [&](const BlockRange& range, std::uint64_t layer, std::uint64_t outer) {
    spans.push_back({source.locate({range.source, layer, outer}),
                     destination.locate({range.destination, layer, outer}),
                     range.count * runs.run_bytes});
  };
  // Loops follow the source's layout, so that spans are generated in source order.
  if (source.kind() == LayoutKind::fully_contiguous) {
    for (const BlockRange& range : ranges) {
      for (std::uint64_t layer = 0; layer < runs.layers; ++layer) {
        for (std::uint64_t outer = 0; outer < runs.outers; ++outer) add(range, layer, outer);
      }
    }
  } else if (source.block_dim() == BlockDim::first) {
    for (std::uint64_t layer = 0; layer < runs.layers; ++layer) {
      for (const BlockRange& range : ranges) {
        for (std::uint64_t outer = 0; outer < runs.outers; ++outer) add(range, layer, outer);
      }
    }
  } else {
    for (std::uint64_t layer = 0; layer < runs.layers; ++layer) {
      for (std::uint64_t outer = 0; outer < runs.outers; ++outer) {
        for (const BlockRange& range : ranges) add(range, layer, outer);
      }
    }
  }
  if (!fans_out(sorted)) {
    // Only the last block of one outer index and the first of the next can still join.
    join(spans, first);
    return;
  }
  sort_by_distance(std::span(spans).subspan(first));
  join(spans, first);
  sort_by_source(std::span(spans).subspan(first));
}

void plan_canonical(const Geometry& geometry, std::uint32_t block, std::vector<BlockSpan>& spans) {
  const Runs runs = runs_of(geometry, geometry);
  for (std::uint64_t layer = 0; layer < runs.layers; ++layer) {
    for (std::uint64_t outer = 0; outer < runs.outers; ++outer) {
      spans.push_back({geometry.locate({block, layer, outer}), runs.run_bytes});
    }
  }
}

}  // namespace cairn

#include "transport/transfer/job_rules.hpp"

#include <algorithm>
#include <string>

namespace cairn {
namespace {

Result<> check_bounds(const TransferJob& job) {
  const std::uint64_t sources = job.source->config().num_blocks;
  const std::uint64_t destinations = job.destination->config().num_blocks;
  for (std::size_t i = 0; i < job.pairs.size(); ++i) {
    const BlockPair pair = job.pairs[i];
    if (pair.source < sources && pair.destination < destinations) continue;
    return Error{ErrorCode::out_of_range,
                 "pair " + std::to_string(i) + " copies block " + std::to_string(pair.source) +
                     " of " + std::to_string(sources) + " to block " +
                     std::to_string(pair.destination) + " of " + std::to_string(destinations)};
  }
  return {};
}

std::vector<std::uint32_t> sorted_destinations(std::span<const BlockPair> pairs) {
  std::vector<std::uint32_t> blocks;
  blocks.reserve(pairs.size());
  for (BlockPair pair : pairs) blocks.push_back(pair.destination);
  if (!std::ranges::is_sorted(blocks)) std::ranges::sort(blocks);
  return blocks;
}

// Copies run in no defined order, so a block that two copies touch would be corrupted.
Result<> check_conflicts(const TransferJob& job) {
  const std::vector<std::uint32_t> destinations = sorted_destinations(job.pairs);
  if (auto twice = std::ranges::adjacent_find(destinations); twice != destinations.end()) {
    return Error{ErrorCode::impossible,
                 "destination block " + std::to_string(*twice) + " is named twice"};
  }
  if (job.source != job.destination || job.operation != JobOperation::copy) return {};
  for (BlockPair pair : job.pairs) {
    if (std::ranges::binary_search(destinations, pair.source)) {
      return Error{ErrorCode::impossible,
                   "block " + std::to_string(pair.source) + " is both a source and a destination"};
    }
  }
  return {};
}

// Disk blocks need a slot file, or nothing would verify their bytes.
Result<> check_sides(const TransferJob& job) {
  const bool from_disk = job.source->storage_kind() == StorageKind::disk;
  const bool to_disk = job.destination->storage_kind() == StorageKind::disk;
  if (job.operation == JobOperation::copy && from_disk && to_disk) {
    return Error{ErrorCode::impossible, "both sides are on disk"};
  }
  if (job.operation == JobOperation::prefetch &&
      job.destination->storage_kind() != StorageKind::unified) {
    return Error{ErrorCode::impossible,
                 "only unified memory is prefetched, not " +
                     std::string(to_string(job.destination->storage_kind()))};
  }
  const bool has_side = job.operation == JobOperation::write_header ? to_disk
                        : job.operation == JobOperation::check      ? from_disk
                                                                    : from_disk || to_disk;
  if (has_side != (job.slots != nullptr)) {
    return Error{ErrorCode::impossible, has_side ? "one side is on disk, but the job has no slots"
                                                 : "the job has slots, but no side is on disk"};
  }
  return {};
}

}  // namespace

Result<> check_job(const TransferJob& job) {
  if (job.source == nullptr || job.destination == nullptr) {
    return Error{ErrorCode::impossible, "a job needs a source and a destination layout"};
  }
  LayoutConfig moved = job.source->config();
  if (job.source_outers) {
    if (job.source->storage_kind() != StorageKind::disk) {
      return Error{ErrorCode::impossible, "a part of a source that is not on disk"};
    }
    moved.outer_dim = job.source_outers->count;
  }
  if (!same_shape(moved, job.destination->config())) {
    return Error{ErrorCode::impossible, "source and destination hold blocks of different shapes"};
  }
  if (!job.headers.empty() && job.headers.size() != job.pairs.size()) {
    return Error{ErrorCode::impossible, std::to_string(job.headers.size()) + " headers for " +
                                            std::to_string(job.pairs.size()) + " pairs"};
  }
  CAIRN_TRY(check_sides(job));
  CAIRN_TRY(check_bounds(job));
  return check_conflicts(job);
}

}  // namespace cairn

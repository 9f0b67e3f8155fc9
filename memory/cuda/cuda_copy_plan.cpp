#include "memory/cuda/cuda_copy_plan.hpp"

#include <algorithm>
#include <string>

namespace cairn {
namespace {

using Extent = CudaAddressMap::Extent;

Error refuse(const MemoryCopy& copy, std::string_view why) {
  return {ErrorCode::device_error,
          "a copy of " + std::to_string(copy.size_bytes) + " bytes " + std::string(why)};
}

bool follows(const MemoryCopy& next, const MemoryCopy& run) {
  return next.source == run.source + run.size_bytes &&
         next.destination == run.destination + run.size_bytes;
}

}  // namespace

void CudaCopyPlan::clear() {
  batch.clear();
  single.clear();
  peer.clear();
}

Result<> CudaCopyPlan::add(std::span<const MemoryCopy> copies, const CudaAddressMap& addresses,
                           int stream_device) {
  CudaAddressMap::Reader reader(addresses);
  MemoryCopy run;
  for (const MemoryCopy& copy : copies) {
    if (copy.size_bytes == 0) continue;
    if (copy.source == nullptr || copy.destination == nullptr) {
      return refuse(copy, "has no source or no destination");
    }
    if (overlaps_itself(copy)) return refuse(copy, "overlaps itself");
    if (run.size_bytes != 0 && follows(copy, run)) {
      run.size_bytes += copy.size_bytes;
      continue;
    }
    CAIRN_TRY(add_run(run, reader, stream_device));
    run = copy;
  }
  return add_run(run, reader, stream_device);
}

Result<> CudaCopyPlan::add_run(const MemoryCopy& run, CudaAddressMap::Reader& addresses,
                               int stream_device) {
  for (std::uint64_t done = 0; done < run.size_bytes;) {
    MemoryCopy piece{run.destination + done, run.source + done, run.size_bytes - done};
    const Extent from = addresses.at(piece.source);
    const Extent to = addresses.at(piece.destination);
    if (piece.size_bytes > std::min(from.to_range_end_bytes, to.to_range_end_bytes)) {
      return refuse(run, "runs past the end of its source or its destination");
    }
    piece.size_bytes = std::min({piece.size_bytes, from.reach_bytes, to.reach_bytes});
    done += piece.size_bytes;

    const bool from_device = from.kind == StorageKind::device;
    const bool to_device = to.kind == StorageKind::device;
    const auto batchable = [stream_device](const Extent& side) {
      return side.kind == StorageKind::pinned ||
             (side.kind == StorageKind::device && side.device_id == stream_device);
    };
    if (from_device && to_device && from.device_id != to.device_id) {
      peer.push_back({piece, to.device_id, from.device_id});
    } else if ((from_device || to_device) && batchable(from) && batchable(to)) {
      batch.push_back(piece);
    } else {
      single.push_back(piece);
    }
  }
  return {};
}

}  // namespace cairn

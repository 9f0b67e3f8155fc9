#pragma once

#include <span>
#include <vector>

#include "base/result.hpp"
#include "memory/cuda/cuda_address_map.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {

// How the copies of one call are issued to CUDA: runs that are adjacent on both sides are merged,
// and split where they cross from one registration of pinned memory to the next.
struct CudaCopyPlan {
  // Between memory of the stream's device and pinned memory, or within the device: can go in one
  // batch.
  std::vector<MemoryCopy> batch;
  // One by one: pageable memory, two host sides, and unified memory, which can be anywhere.
  std::vector<MemoryCopy> single;
  struct Peer {
    MemoryCopy copy;
    int destination_device = 0;
    int source_device = 0;
  };
  std::vector<Peer> peer;

  void clear();
  // device_error if a copy has no side, overlaps itself, or runs past the end of its memory; then
  // the plan must not be used.
  Result<> add(std::span<const MemoryCopy> copies, const CudaAddressMap& addresses,
               int stream_device);

 private:
  Result<> add_run(const MemoryCopy& run, CudaAddressMap::Reader& addresses, int stream_device);
};

}  // namespace cairn

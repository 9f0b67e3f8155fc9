#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "tests/fakes/cudart/memory.hpp"

namespace cairn::fakes {

// The driver's virtual memory management: handles of physical memory, address ranges, and mappings
// of memory into ranges. Refuses what is undefined with the real driver: releasing a handle twice,
// freeing addresses with a mapping, unmapping half a mapping. Thread-safe.
class VirtualMemory {
 public:
  static constexpr std::size_t kGranularityBytes = std::size_t{2} << 20;

  explicit VirtualMemory(Memory& memory) : memory_(memory) {}

  CUresult create(CUmemGenericAllocationHandle* handle, std::size_t size_bytes,
                  const CUmemAllocationProp& what);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult reserve(CUdeviceptr* address, std::size_t size_bytes);
  CUresult free(CUdeviceptr address, std::size_t size_bytes);
  CUresult map(CUdeviceptr address, std::size_t size_bytes, CUmemGenericAllocationHandle handle);
  CUresult unmap(CUdeviceptr address, std::size_t size_bytes);
  // A memfd that the fake recognizes in another process.
  CUresult export_handle(int* descriptor, CUmemGenericAllocationHandle handle) const;
  CUresult import_handle(CUmemGenericAllocationHandle* handle, int descriptor);
  CUresult properties(CUmemAllocationProp* what, CUmemGenericAllocationHandle handle) const;

  std::size_t handles() const;
  std::size_t reservations() const;
  std::size_t mappings() const;

 private:
  struct Physical;
  struct Mapping {
    std::size_t size_bytes = 0;
    std::shared_ptr<Physical> physical;
  };
  CUmemGenericAllocationHandle keep(std::shared_ptr<Physical> physical);
  std::shared_ptr<Physical> find(CUmemGenericAllocationHandle handle) const;

  Memory& memory_;
  mutable std::mutex mutex_;
  CUmemGenericAllocationHandle last_handle_ = 0x7000;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Physical>> handles_;
  std::map<CUdeviceptr, std::size_t> reservations_;
  std::map<CUdeviceptr, Mapping> mappings_;
};

}  // namespace cairn::fakes

// The part of CUDA's driver that callers find through the runtime, with cuda.h's names and types: a
// wrong signature does not compile.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/fakes/cudart/state.hpp"

namespace cairn::fakes {
namespace {

// Like the runtime's call() and release(); the driver keeps no last error.
template <class Body>
CUresult driver_call(const char* name, Body body) {
  const int device = thread_state().device;
  Faults& faults = state().faults;
  const cudaError_t planned = faults.next(name);
  if (breaks_the_device(planned)) faults.break_device(device, planned);
  const cudaError_t broken = broken_and_still(device);
  const cudaError_t failed = broken != cudaSuccess ? broken : planned;
  return failed != cudaSuccess ? static_cast<CUresult>(failed) : body();
}

template <class Body>
CUresult driver_release(const char* name, Body body) {
  const CUresult outcome = body();
  return driver_call(name, [outcome] { return outcome; });
}

bool is_device(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 &&
         location.id < state().devices;
}

// Pinned memory of a device, with or without a descriptor.
bool is_known(const CUmemAllocationProp* what) {
  return what != nullptr && what->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         is_device(what->location) && what->win32HandleMetaData == nullptr &&
         (what->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
          what->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE);
}

CUresult get_error_name(CUresult error, const char** name) {
  switch (error) {
    case CUDA_ERROR_INVALID_VALUE:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return CUDA_SUCCESS;
    case CUDA_ERROR_UNKNOWN:
      *name = "CUDA_ERROR_UNKNOWN";
      return CUDA_SUCCESS;
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult device_get(CUdevice* device, int ordinal) {
  return driver_call("cuDeviceGet", [&] {
    if (ordinal < 0 || ordinal >= state().devices) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

// CAIRN_FAKE_CUDA_LACKS is the number of one attribute that the devices lack.
CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  return driver_call("cuDeviceGetAttribute", [&] {
    const char* const lacks = std::getenv("CAIRN_FAKE_CUDA_LACKS");
    const bool has = lacks == nullptr || std::atoi(lacks) != static_cast<int>(attribute);
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *value = has ? 1 : 0;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult get_address_range(CUdeviceptr* base, std::size_t* size_bytes, CUdeviceptr address) {
  return driver_call("cuMemGetAddressRange", [&] {
    std::uintptr_t begin = 0;
    const cudaError_t known =
        state().memory.block_of(reinterpret_cast<const void*>(address), &begin, size_bytes);
    *base = begin;
    return static_cast<CUresult>(known);
  });
}

CUresult get_allocation_granularity(std::size_t* size_bytes, const CUmemAllocationProp* what,
                                    CUmemAllocationGranularity_flags option) {
  return driver_call("cuMemGetAllocationGranularity", [&] {
    if (!is_known(what)) return CUDA_ERROR_INVALID_VALUE;
    const bool least = option == CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    *size_bytes = VirtualMemory::kGranularityBytes * (least ? 1 : 2);
    return CUDA_SUCCESS;
  });
}

CUresult create(CUmemGenericAllocationHandle* handle, std::size_t size_bytes,
                const CUmemAllocationProp* what, unsigned long long flags) {
  return driver_call("cuMemCreate", [&] {
    if (flags != 0 || !is_known(what)) return CUDA_ERROR_INVALID_VALUE;
    return state().virtual_memory.create(handle, size_bytes, *what);
  });
}

CUresult release_handle(CUmemGenericAllocationHandle handle) {
  return driver_release("cuMemRelease", [&] { return state().virtual_memory.release(handle); });
}

CUresult address_reserve(CUdeviceptr* address, std::size_t size_bytes, std::size_t alignment,
                         CUdeviceptr wanted, unsigned long long flags) {
  return driver_call("cuMemAddressReserve", [&] {
    if (alignment != 0 || wanted != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return state().virtual_memory.reserve(address, size_bytes);
  });
}

CUresult address_free(CUdeviceptr address, std::size_t size_bytes) {
  return driver_release("cuMemAddressFree",
                        [&] { return state().virtual_memory.free(address, size_bytes); });
}

CUresult map(CUdeviceptr address, std::size_t size_bytes, std::size_t offset,
             CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return driver_call("cuMemMap", [&] {
    if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return state().virtual_memory.map(address, size_bytes, handle);
  });
}

CUresult unmap(CUdeviceptr address, std::size_t size_bytes) {
  return driver_release("cuMemUnmap",
                        [&] { return state().virtual_memory.unmap(address, size_bytes); });
}

CUresult set_access(CUdeviceptr address, std::size_t size_bytes, const CUmemAccessDesc* who,
                    std::size_t count) {
  return driver_call("cuMemSetAccess", [&] {
    std::uint64_t devices = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (!is_device(who[i].location) || who[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      devices |= std::uint64_t{1} << who[i].location.id;
    }
    const bool done =
        state().memory.set_access(reinterpret_cast<const void*>(address), size_bytes, devices);
    return count > 0 && done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult export_handle(void* shareable, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags) {
  return driver_call("cuMemExportToShareableHandle", [&] {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return state().virtual_memory.export_handle(static_cast<int*>(shareable), handle);
  });
}

CUresult import_handle(CUmemGenericAllocationHandle* handle, void* shareable,
                       CUmemAllocationHandleType type) {
  return driver_call("cuMemImportFromShareableHandle", [&] {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    const auto descriptor = static_cast<int>(reinterpret_cast<std::uintptr_t>(shareable));
    return state().virtual_memory.import_handle(handle, descriptor);
  });
}

CUresult get_properties(CUmemAllocationProp* what, CUmemGenericAllocationHandle handle) {
  return driver_call("cuMemGetAllocationPropertiesFromHandle",
                     [&] { return state().virtual_memory.properties(what, handle); });
}

template <class Function>
void* entry(Function function) {
  return reinterpret_cast<void*>(function);
}

void* find(std::string_view name) {
  if (name == "cuGetErrorName") return entry<PFN_cuGetErrorName_v6000>(get_error_name);
  if (name == "cuDeviceGet") return entry<PFN_cuDeviceGet_v2000>(device_get);
  if (name == "cuDeviceGetAttribute") {
    return entry<PFN_cuDeviceGetAttribute_v2000>(device_get_attribute);
  }
  if (name == "cuMemGetAddressRange") {
    return entry<PFN_cuMemGetAddressRange_v3020>(get_address_range);
  }
  if (name == "cuMemGetAllocationGranularity") {
    return entry<PFN_cuMemGetAllocationGranularity_v10020>(get_allocation_granularity);
  }
  if (name == "cuMemCreate") return entry<PFN_cuMemCreate_v10020>(create);
  if (name == "cuMemRelease") return entry<PFN_cuMemRelease_v10020>(release_handle);
  if (name == "cuMemAddressReserve") return entry<PFN_cuMemAddressReserve_v10020>(address_reserve);
  if (name == "cuMemAddressFree") return entry<PFN_cuMemAddressFree_v10020>(address_free);
  if (name == "cuMemMap") return entry<PFN_cuMemMap_v10020>(map);
  if (name == "cuMemUnmap") return entry<PFN_cuMemUnmap_v10020>(unmap);
  if (name == "cuMemSetAccess") return entry<PFN_cuMemSetAccess_v10020>(set_access);
  if (name == "cuMemExportToShareableHandle") {
    return entry<PFN_cuMemExportToShareableHandle_v10020>(export_handle);
  }
  if (name == "cuMemImportFromShareableHandle") {
    return entry<PFN_cuMemImportFromShareableHandle_v10020>(import_handle);
  }
  if (name == "cuMemGetAllocationPropertiesFromHandle") {
    return entry<PFN_cuMemGetAllocationPropertiesFromHandle_v10020>(get_properties);
  }
  return nullptr;
}

}  // namespace
}  // namespace cairn::fakes

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** entry, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  using namespace cairn::fakes;
  return call("cudaGetDriverEntryPointByVersion", thread_state().device, [&] {
    *entry = cairn::fakes::find(symbol);
    *found = *entry != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}

}  // extern "C"

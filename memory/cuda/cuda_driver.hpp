#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

#include "base/result.hpp"
#include "memory/cuda/cuda_device.hpp"

namespace cairn {

// Functions that only CUDA's driver has: those of cuda.h that are used here, found through the
// runtime, so that nothing more is linked. Like the runtime's they apply to the calling thread's
// current device: call CudaDevice::enter() first.
struct CudaDriver {
  // device_error, with the name, if the driver does not have one.
  static Result<CudaDriver> load(CudaDevice& device);

  // As CudaDevice::check() and check_release(), with the driver's name of the error.
  Result<> check(CudaDevice& device, CUresult outcome, CudaCall call) const;
  void check_release(CudaDevice& device, CUresult outcome, CudaCall call) const;
  // The outcome of a call about another process's memory. For input that it cannot take, CUDA
  // returns codes that otherwise mean a lost device; a client's mistake must not be mistaken for
  // that. The device itself shows whether it is lost; all else is impossible, or no_capacity.
  Result<> check_given(CudaDevice& device, CUresult outcome, CudaCall call) const;

  PFN_cuGetErrorName_v6000 get_error_name = nullptr;
  PFN_cuDeviceGet_v2000 device_get = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_get_attribute = nullptr;
  PFN_cuMemGetAddressRange_v3020 get_address_range = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 get_allocation_granularity = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemAddressReserve_v10020 address_reserve = nullptr;
  PFN_cuMemAddressFree_v10020 address_free = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 export_handle = nullptr;
  PFN_cuMemImportFromShareableHandle_v10020 import_handle = nullptr;
  PFN_cuMemGetAllocationPropertiesFromHandle_v10020 get_properties = nullptr;

 private:
  std::string message(CUresult outcome, CudaCall call) const;
};

}  // namespace cairn

#include "memory/cuda/cuda_driver.hpp"

#include <cuda_runtime_api.h>

namespace cairn {
namespace {

// The functions in CUDA 12's versions; the newest of them is from 10.2.
constexpr unsigned int kSince = 12000;

template <class Function>
Result<> find(CudaDevice& device, const char* name, Function& function) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CAIRN_TRY(device.check(
      cudaGetDriverEntryPointByVersion(name, &entry, kSince, cudaEnableDefault, &found),
      {"cudaGetDriverEntryPointByVersion", name}));
  if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
    return Error{ErrorCode::device_error, std::string("the driver has no ") + name};
  }
  function = reinterpret_cast<Function>(entry);
  return {};
}

// The runtime's codes equal the driver's since CUDA 10.1.
cudaError_t as_runtime(CUresult outcome) { return static_cast<cudaError_t>(outcome); }

}  // namespace

Result<CudaDriver> CudaDriver::load(CudaDevice& device) {
  CudaDriver driver;
  CAIRN_TRY(find(device, "cuGetErrorName", driver.get_error_name));
  CAIRN_TRY(find(device, "cuDeviceGet", driver.device_get));
  CAIRN_TRY(find(device, "cuDeviceGetAttribute", driver.device_get_attribute));
  CAIRN_TRY(find(device, "cuMemGetAddressRange", driver.get_address_range));
  CAIRN_TRY(find(device, "cuMemGetAllocationGranularity", driver.get_allocation_granularity));
  CAIRN_TRY(find(device, "cuMemCreate", driver.create));
  CAIRN_TRY(find(device, "cuMemRelease", driver.release));
  CAIRN_TRY(find(device, "cuMemAddressReserve", driver.address_reserve));
  CAIRN_TRY(find(device, "cuMemAddressFree", driver.address_free));
  CAIRN_TRY(find(device, "cuMemMap", driver.map));
  CAIRN_TRY(find(device, "cuMemUnmap", driver.unmap));
  CAIRN_TRY(find(device, "cuMemSetAccess", driver.set_access));
  CAIRN_TRY(find(device, "cuMemExportToShareableHandle", driver.export_handle));
  CAIRN_TRY(find(device, "cuMemImportFromShareableHandle", driver.import_handle));
  CAIRN_TRY(find(device, "cuMemGetAllocationPropertiesFromHandle", driver.get_properties));
  return driver;
}

std::string CudaDriver::message(CUresult outcome, CudaCall call) const {
  const char* name = nullptr;
  if (get_error_name(outcome, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown error";
  std::string text = std::string(call.name) + " to " + call.purpose;
  if (call.size_bytes != 0) text += " (" + std::to_string(call.size_bytes) + " bytes)";
  return text + ": " + name;
}

Result<> CudaDriver::check(CudaDevice& device, CUresult outcome, CudaCall call) const {
  if (outcome == CUDA_SUCCESS) [[likely]]
    return {};
  return device.fail(as_runtime(outcome), message(outcome, call));
}

void CudaDriver::check_release(CudaDevice& device, CUresult outcome, CudaCall call) const {
  static_cast<void>(check(device, outcome, call).has_value());
}

Result<> CudaDriver::check_given(CudaDevice& device, CUresult outcome, CudaCall call) const {
  if (outcome == CUDA_SUCCESS) return {};
  CAIRN_TRY(device.probe());
  return Error{outcome == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::no_capacity : ErrorCode::impossible,
               message(outcome, call)};
}

}  // namespace cairn

#include "memory/cuda/cuda_vmm.hpp"

#include <cuda_runtime_api.h>
#include <fcntl.h>

#include <string>
#include <utility>
#include <vector>

#include "memory/cuda/cuda_driver.hpp"
#include "memory/mapping.hpp"

namespace cairn {
namespace {

constexpr CUmemAllocationHandleType kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// The devices' memory in CUDA's virtual memory management: physical memory, a range of addresses,
// and a mapping between them. Created step by step, undone in reverse from any step.
class VirtualMemory {
 public:
  VirtualMemory(std::shared_ptr<CudaContext> context, CudaDevice& device, const CudaDriver& driver)
      : context_(std::move(context)), device_(device), driver_(driver) {}
  VirtualMemory(const VirtualMemory&) = delete;
  VirtualMemory& operator=(const VirtualMemory&) = delete;
  ~VirtualMemory() {
    if (device_.hangs()) return;
    if (mapped_) {
      driver_.check_release(device_, driver_.unmap(address_, size_bytes_),
                            {"cuMemUnmap", "give memory back", size_bytes_});
    }
    if (address_ != 0) {
      driver_.check_release(device_, driver_.address_free(address_, size_bytes_),
                            {"cuMemAddressFree", "give addresses back", size_bytes_});
    }
    if (held_) {
      driver_.check_release(device_, driver_.release(physical_),
                            {"cuMemRelease", "give memory back", size_bytes_});
    }
  }

  // This process's own memory: enough units for `size_bytes`.
  Result<> create(std::uint64_t size_bytes) {
    auto what = properties();
    if (!what) return std::move(what).error();
    auto unit_bytes = granularity(*what);
    if (!unit_bytes) return std::move(unit_bytes).error();
    size_bytes_ = (size_bytes + *unit_bytes - 1) / *unit_bytes * *unit_bytes;
    CAIRN_TRY(driver_.check(device_, driver_.create(&physical_, size_bytes_, &*what, 0),
                            {"cuMemCreate", "allocate device memory", size_bytes_}));
    held_ = true;
    CAIRN_TRY(reserve());
    CAIRN_TRY(driver_.check(device_, driver_.map(address_, size_bytes_, 0, physical_, 0),
                            {"cuMemMap", "map device memory", size_bytes_}));
    mapped_ = true;
    return let_devices_in();
  }

  // Memory of a descriptor. CUDA does not take the descriptor, which stays open.
  Result<> import(int descriptor, std::uint64_t size_bytes) {
    auto wanted = properties();
    if (!wanted) return std::move(wanted).error();
    auto unit_bytes = granularity(*wanted);
    if (!unit_bytes) return std::move(unit_bytes).error();
    if (size_bytes % *unit_bytes != 0) {
      return Error{ErrorCode::impossible, "size_bytes is " + std::to_string(size_bytes) +
                                              ": memory of a descriptor is mapped in units of " +
                                              std::to_string(*unit_bytes) + " bytes"};
    }
    size_bytes_ = size_bytes;
    // The driver takes the number itself although it declares a pointer.
    void* const handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
    CAIRN_TRY(driver_.check_given(
        device_, driver_.import_handle(&physical_, handle, kDescriptor),
        {"cuMemImportFromShareableHandle", "import device memory", size_bytes_}));
    held_ = true;
    CAIRN_TRY(check_place());
    CAIRN_TRY(reserve());
    CAIRN_TRY(driver_.check_given(device_, driver_.map(address_, size_bytes_, 0, physical_, 0),
                                  {"cuMemMap", "map imported memory", size_bytes_}));
    mapped_ = true;
    return let_devices_in();
  }

  // A separate descriptor for each caller.
  Result<FileDescriptor> descriptor() const {
    CAIRN_TRY(device_.enter());
    int number = -1;
    // It takes a new descriptor: running out of them must not be mistaken for a lost device.
    CAIRN_TRY(
        driver_.check_given(device_, driver_.export_handle(&number, physical_, kDescriptor, 0),
                            {"cuMemExportToShareableHandle", "export device memory", size_bytes_}));
    FileDescriptor made(number);
    if (::fcntl(made.get(), F_SETFD, FD_CLOEXEC) != 0) {
      return Error{ErrorCode::io_error, "fcntl(F_SETFD) of an exported descriptor"};
    }
    return made;
  }

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  std::uint64_t size_bytes() const { return size_bytes_; }
  int device_id() const { return device_.info().id; }
  CudaAddressMap& addresses() const { return context_->addresses; }

 private:
  Result<int> attribute(CUdevice_attribute which) const {
    CUdevice device = 0;
    CAIRN_TRY(driver_.check(device_, driver_.device_get(&device, device_id()),
                            {"cuDeviceGet", "describe the device"}));
    int value = 0;
    CAIRN_TRY(driver_.check(device_, driver_.device_get_attribute(&value, which, device),
                            {"cuDeviceGetAttribute", "describe the device"}));
    return value;
  }

  // The properties for memory of this device; impossible if it has none.
  Result<CUmemAllocationProp> properties() const {
    for (const CUdevice_attribute needed :
         {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
      const auto has = attribute(needed);
      if (!has) return has.error();
      if (*has == 0) {
        return Error{ErrorCode::impossible,
                     "device " + std::to_string(device_id()) + " (" + device_.info().name +
                         ") has no memory that a descriptor opens: use cuda_ipc"};
      }
    }
    const auto rdma = attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    if (!rdma) return rdma.error();
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.requestedHandleTypes = kDescriptor;
    what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_id()};
    // Network cards and NCCL's registration need it, if it is available.
    what.allocFlags.gpuDirectRDMACapable = *rdma != 0 ? 1 : 0;
    return what;
  }

  Result<std::uint64_t> granularity(const CUmemAllocationProp& what) const {
    std::size_t unit_bytes = 0;
    CAIRN_TRY(driver_.check(
        device_,
        driver_.get_allocation_granularity(&unit_bytes, &what, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        {"cuMemGetAllocationGranularity", "find the unit of device memory"}));
    return unit_bytes;
  }

  // Copies are issued by where memory lies, so this must be true for imported memory.
  Result<> check_place() const {
    CUmemAllocationProp found{};
    CAIRN_TRY(driver_.check_given(
        device_, driver_.get_properties(&found, physical_),
        {"cuMemGetAllocationPropertiesFromHandle", "see where imported memory lies"}));
    if (found.location.type == CU_MEM_LOCATION_TYPE_DEVICE && found.location.id == device_id()) {
      return {};
    }
    return Error{ErrorCode::impossible, found.location.type == CU_MEM_LOCATION_TYPE_DEVICE
                                            ? "the memory lies on device " +
                                                  std::to_string(found.location.id) +
                                                  ", not on device " + std::to_string(device_id())
                                            : "the memory lies on no device"};
  }

  Result<> reserve() {
    return driver_.check(device_, driver_.address_reserve(&address_, size_bytes_, 0, 0, 0),
                         {"cuMemAddressReserve", "reserve addresses", size_bytes_});
  }

  // Until then mapped memory is inaccessible; cudaDeviceEnablePeerAccess applies only to
  // cudaMalloc's memory.
  Result<> let_devices_in() {
    std::vector<CUmemAccessDesc> who;
    for (const CudaDevice* other : context_->open_devices) {
      int reaches = 1;
      if (other->info().id != device_id()) {
        CAIRN_TRY(
            device_.check(cudaDeviceCanAccessPeer(&reaches, other->info().id, device_id()),
                          {"cudaDeviceCanAccessPeer", "see whether devices reach each other"}));
      }
      if (reaches == 0) continue;
      who.push_back({.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = other->info().id},
                     .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    }
    return driver_.check(device_, driver_.set_access(address_, size_bytes_, who.data(), who.size()),
                         {"cuMemSetAccess", "let devices reach memory", size_bytes_});
  }

  const std::shared_ptr<CudaContext> context_;
  CudaDevice& device_;
  const CudaDriver driver_;
  CUmemGenericAllocationHandle physical_ = 0;
  bool held_ = false;  // physical_ is
  CUdeviceptr address_ = 0;
  bool mapped_ = false;  // the one at the other
  std::uint64_t size_bytes_ = 0;
};

// A region in it, known to the address map.
class CudaVirtual : public RegionBacking {
 public:
  CudaVirtual(std::unique_ptr<VirtualMemory> memory, std::uint64_t used_bytes)
      : memory_(std::move(memory)), used_bytes_(used_bytes) {
    memory_->addresses().insert({.begin = memory_->data(),
                                 .size_bytes = used_bytes_,
                                 .kind = StorageKind::device,
                                 .device_id = memory_->device_id(),
                                 .piece_bytes = used_bytes_});
  }
  ~CudaVirtual() override { memory_->addresses().erase(memory_->data()); }

  Region::Parts parts() const {
    return {.kind = StorageKind::device,
            .device_id = memory_->device_id(),
            .data = memory_->data(),
            .size_bytes = used_bytes_};
  }
  Result<ExportedMemory> share(const Region&) const override {
    auto descriptor = memory_->descriptor();
    if (!descriptor) return std::move(descriptor).error();
    return ExportedMemory{.kind = ExportedMemory::Kind::cuda_vmm_fd,
                          .device_id = memory_->device_id(),
                          .size_bytes = memory_->size_bytes(),
                          .file = std::make_shared<const FileDescriptor>(std::move(*descriptor))};
  }

 private:
  const std::unique_ptr<VirtualMemory> memory_;
  const std::uint64_t used_bytes_;
};

// Another process's memory. share() returns the description it was made from.
class CudaVirtualImported final : public CudaVirtual {
 public:
  CudaVirtualImported(std::unique_ptr<VirtualMemory> mapped, ExportedMemory memory)
      : CudaVirtual(std::move(mapped), memory.size_bytes), memory_(std::move(memory)) {}
  Result<ExportedMemory> share(const Region&) const override { return memory_; }

 private:
  const ExportedMemory memory_;
};

Result<std::unique_ptr<VirtualMemory>> begin(std::shared_ptr<CudaContext> context, int device_id) {
  CudaDevice& device = *context->devices[static_cast<std::size_t>(device_id)];
  CAIRN_TRY(device.enter());
  auto driver = CudaDriver::load(device);
  if (!driver) return std::move(driver).error();
  return std::make_unique<VirtualMemory>(std::move(context), device, *driver);
}

}  // namespace

Result<Region> allocate_cuda_vmm(std::shared_ptr<CudaContext> context, CudaMemoryRequest request) {
  CAIRN_TRY(check_region_size("device memory", request.size_bytes));
  CudaDevice& device = *context->devices[static_cast<std::size_t>(request.device_id)];
  auto memory = begin(std::move(context), request.device_id);
  if (!memory) return std::move(memory).error();
  CAIRN_TRY((*memory)->create(request.size_bytes));
  const std::uint64_t whole_bytes = (*memory)->size_bytes();
  auto backing = std::make_unique<CudaVirtual>(std::move(*memory), request.size_bytes);
  const Region::Parts parts = backing->parts();
  // Other processes map it whole, and would see earlier bytes of the memory after this region's
  // end.
  CAIRN_TRY(device.zero_now(parts.data, whole_bytes));
  return Region::adopt(parts, std::move(backing));
}

Result<Region> import_cuda_vmm(std::shared_ptr<CudaContext> context, const ExportedMemory& memory,
                               int device_id) {
  CAIRN_TRY(check_descriptor_is_here(memory));
  CAIRN_TRY(check_region_size("imported memory", memory.size_bytes));
  if (memory.offset_bytes != 0) {
    return Error{ErrorCode::impossible,
                 "memory of a descriptor is mapped from its beginning, not from " +
                     std::to_string(memory.offset_bytes)};
  }
  auto mapped = begin(std::move(context), device_id);
  if (!mapped) return std::move(mapped).error();
  CAIRN_TRY((*mapped)->import(memory.file->get(), memory.size_bytes));
  auto backing = std::make_unique<CudaVirtualImported>(std::move(*mapped), memory);
  const Region::Parts parts = backing->parts();
  return Region::adopt(parts, std::move(backing));
}

}  // namespace cairn

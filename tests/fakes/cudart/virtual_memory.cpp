#include "tests/fakes/cudart/virtual_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace cairn::fakes {
namespace {

constexpr char kName[] = "fake-vmm";
// Stored after the memfd's bytes, in a separate page.
struct Label {
  std::uint64_t mark;
  int device;
  bool exportable;
};
constexpr std::uint64_t kFileMark = 0xCA12'4E19'C0DA'0002;
constexpr std::size_t kLabelBytes = 4096;

bool is_whole(std::size_t size_bytes) {
  return size_bytes != 0 && size_bytes % VirtualMemory::kGranularityBytes == 0;
}

}  // namespace

struct VirtualMemory::Physical {
  ~Physical() {
    if (bytes != nullptr) ::munmap(bytes, size_bytes + kLabelBytes);
    if (file >= 0) ::close(file);
  }
  Label& label() const { return *reinterpret_cast<Label*>(bytes + size_bytes); }
  bool map_bytes() {
    void* const data =
        ::mmap(nullptr, size_bytes + kLabelBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) return false;
    bytes = static_cast<std::byte*>(data);
    return true;
  }

  int file = -1;
  std::size_t size_bytes = 0;
  std::byte* bytes = nullptr;
};

CUresult VirtualMemory::create(CUmemGenericAllocationHandle* handle, std::size_t size_bytes,
                               const CUmemAllocationProp& what) {
  if (!is_whole(size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (size_bytes > device_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  auto made = std::make_shared<Physical>();
  made->size_bytes = size_bytes;
  made->file = ::memfd_create(kName, MFD_CLOEXEC);
  if (made->file < 0 ||
      ::ftruncate(made->file, static_cast<::off_t>(size_bytes + kLabelBytes)) != 0 ||
      !made->map_bytes()) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::memset(made->bytes, kStale, size_bytes);
  made->label() = {
      .mark = kFileMark,
      .device = what.location.id,
      .exportable = what.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
  const std::lock_guard lock(mutex_);
  *handle = keep(std::move(made));
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  return handles_.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult VirtualMemory::reserve(CUdeviceptr* address, std::size_t size_bytes) {
  if (!is_whole(size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  void* const range =
      ::mmap(nullptr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<std::uintptr_t>(range);
  const std::lock_guard lock(mutex_);
  reservations_.emplace(*address, size_bytes);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::free(CUdeviceptr address, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != size_bytes || mappings_.contains(address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::munmap(reinterpret_cast<void*>(address), size_bytes);
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::map(CUdeviceptr address, std::size_t size_bytes,
                            CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto reserved = reservations_.find(address);
  const auto physical = find(handle);
  if (!is_whole(size_bytes) || reserved == reservations_.end() || reserved->second < size_bytes ||
      physical == nullptr || physical->size_bytes < size_bytes || mappings_.contains(address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  mappings_.emplace(address, Mapping{size_bytes, physical});
  memory_.add_mapped(reinterpret_cast<void*>(address), physical->label().device, size_bytes,
                     physical->bytes);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unmap(CUdeviceptr address, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || found->second.size_bytes != size_bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  memory_.remove_mapped(reinterpret_cast<void*>(address));
  mappings_.erase(found);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::export_handle(int* descriptor, CUmemGenericAllocationHandle handle) const {
  const std::lock_guard lock(mutex_);
  const auto physical = find(handle);
  if (physical == nullptr || !physical->label().exportable) return CUDA_ERROR_INVALID_VALUE;
  // Not closed on exec: CUDA does not promise that its descriptors are.
  *descriptor = ::dup(physical->file);
  return *descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult VirtualMemory::import_handle(CUmemGenericAllocationHandle* handle, int descriptor) {
  std::string name(64, '\0');
  const ::ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), name.data(), name.size());
  // A descriptor that is not CUDA's returns the same error as a broken device.
  if (length < 0 || !name.starts_with(std::string("/memfd:") + kName)) return CUDA_ERROR_UNKNOWN;
  auto opened = std::make_shared<Physical>();
  opened->file = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  const ::off_t whole = ::lseek(descriptor, 0, SEEK_END);
  if (opened->file < 0 || whole <= static_cast<::off_t>(kLabelBytes)) return CUDA_ERROR_UNKNOWN;
  opened->size_bytes = static_cast<std::size_t>(whole) - kLabelBytes;
  if (!opened->map_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (opened->label().mark != kFileMark) return CUDA_ERROR_UNKNOWN;
  const std::lock_guard lock(mutex_);
  *handle = keep(std::move(opened));
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::properties(CUmemAllocationProp* what,
                                   CUmemGenericAllocationHandle handle) const {
  const std::lock_guard lock(mutex_);
  const auto physical = find(handle);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *what = {};
  what->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what->location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = physical->label().device};
  return CUDA_SUCCESS;
}

std::size_t VirtualMemory::handles() const {
  const std::lock_guard lock(mutex_);
  return handles_.size();
}
std::size_t VirtualMemory::reservations() const {
  const std::lock_guard lock(mutex_);
  return reservations_.size();
}
std::size_t VirtualMemory::mappings() const {
  const std::lock_guard lock(mutex_);
  return mappings_.size();
}

CUmemGenericAllocationHandle VirtualMemory::keep(std::shared_ptr<Physical> physical) {
  handles_.emplace(++last_handle_, std::move(physical));
  return last_handle_;
}

std::shared_ptr<VirtualMemory::Physical> VirtualMemory::find(
    CUmemGenericAllocationHandle handle) const {
  const auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second;
}

}  // namespace cairn::fakes

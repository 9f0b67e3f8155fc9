#include "memory/host/host_memory.hpp"

#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "base/assert.hpp"
#include "base/file_descriptor.hpp"
#include "memory/exported_memory.hpp"
#include "memory/mapping.hpp"

namespace cairn {
namespace {

// Bytes taken from a budget, returned by the destructor.
class Reservation {
 public:
  Reservation(std::shared_ptr<MemoryBudget> budget, std::uint64_t size_bytes)
      : budget_(std::move(budget)), size_bytes_(size_bytes) {}
  Reservation(Reservation&& other) noexcept = default;
  Reservation& operator=(Reservation&&) = delete;
  ~Reservation() {
    if (budget_) budget_->give_back(size_bytes_);
  }
  Result<> resize(std::uint64_t size_bytes) {
    if (size_bytes > size_bytes_) CAIRN_TRY(budget_->reserve(size_bytes - size_bytes_));
    if (size_bytes < size_bytes_) budget_->give_back(size_bytes_ - size_bytes);
    size_bytes_ = size_bytes;
    return {};
  }

 private:
  std::shared_ptr<MemoryBudget> budget_;
  std::uint64_t size_bytes_;
};

constexpr std::uint64_t kPageBytes = 4096;

// Members are destroyed in reverse order: the bytes count as free only once they are.
struct SharedMemory final : RegionBacking {
  SharedMemory(Reservation reserved, FileDescriptor memfd, void* data,
               RegionView::Part place_in_file)
      : reservation(std::move(reserved)),
        file(std::move(memfd)),
        mapping(data, place_in_file.size_bytes),
        place(place_in_file) {}
  ~SharedMemory() override {
    // In the file of other memory, the pages would outlive this.
    if (place.offset_bytes > 0) static_cast<void>(punch({.size_bytes = place.size_bytes}));
  }

  Result<ExportedMemory> share(const Region& region) const override {
    auto memory = RegionBacking::share(region);
    if (memory) memory->offset_bytes = place.offset_bytes;
    return memory;
  }

  Result<bool> let_go(std::span<const RegionView::Part> parts) override {
    std::uint64_t kept_bytes = place.size_bytes;
    for (const RegionView::Part& part : parts) kept_bytes -= part.size_bytes;
    for (const RegionView::Part& part : parts) CAIRN_TRY(punch(part));
    CAIRN_TRY(reservation.resize(kept_bytes));
    return true;
  }

  Result<> punch(RegionView::Part part) const {
    while (::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                       static_cast<::off_t>(place.offset_bytes + part.offset_bytes),
                       static_cast<::off_t>(part.size_bytes)) != 0) {
      if (errno == EINTR) continue;
      return Error{ErrorCode::io_error,
                   "fallocate(FALLOC_FL_PUNCH_HOLE): " + std::generic_category().message(errno)};
    }
    return {};
  }

  Reservation reservation;
  FileDescriptor file;
  Mapping mapping;
  const RegionView::Part place;  // in the file
};

// A preference, not a demand: a full node hands over to the next one. If binding is not allowed
// (containers often forbid it), the memory is as good, only further away.
void prefer_node(void* data, std::uint64_t size_bytes, int node) {
  ::bitmask* const nodes = ::numa_allocate_nodemask();
  ::numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
  // The kernel reads one bit less than the given number.
  ::mbind(data, size_bytes, MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0);
  ::numa_free_nodemask(nodes);
}

Error no_memory(const SharedMemoryRequest& request, std::string_view call, int error_number) {
  return {ErrorCode::no_capacity, "no " + std::to_string(request.size_bytes) + " bytes of " +
                                      std::string(to_string(request.kind)) +
                                      " memory: " + std::string(call) + ": " +
                                      std::generic_category().message(error_number)};
}

Result<FileDescriptor> new_file(const SharedMemoryRequest& request) {
  FileDescriptor file(::memfd_create("cairn", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) return no_memory(request, "memfd_create", errno);
  if (::ftruncate(file.get(), static_cast<::off_t>(request.size_bytes)) != 0) {
    return no_memory(request, "ftruncate", errno);
  }
  // Otherwise a process that maps it could truncate it, and touching the missing part kills this
  // process. It may become longer: see SharedFilePlace.
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return no_memory(request, "fcntl(F_ADD_SEALS)", errno);
  }
  // A new memfd's mode would admit everyone who can reach it.
  if (::fchmod(file.get(), S_IRUSR | S_IWUSR) != 0) return no_memory(request, "fchmod", errno);
  return file;
}

Result<FileDescriptor> longer_file(const SharedMemoryRequest& request) {
  CAIRN_ASSERT(request.place.offset_bytes % kPageBytes == 0, "mmap refuses such an offset");
  FileDescriptor file(::fcntl(request.place.fd, F_DUPFD_CLOEXEC, 0));
  if (!file) return no_memory(request, "fcntl(F_DUPFD_CLOEXEC)", errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return no_memory(request, "fstat", errno);
  const auto end = static_cast<::off_t>(request.place.offset_bytes + request.size_bytes);
  if (status.st_size < end && ::ftruncate(file.get(), end) != 0) {
    return no_memory(request, "ftruncate", errno);
  }
  return file;
}

}  // namespace

Result<> MemoryBudget::reserve(std::uint64_t size_bytes) {
  std::uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (size_bytes > total_bytes_ - used) {
      return Error{ErrorCode::no_capacity, std::to_string(size_bytes) + " bytes do not fit " +
                                               owner_ + ": " + std::to_string(total_bytes_ - used) +
                                               " of " + std::to_string(total_bytes_) + " are left"};
    }
  } while (!used_bytes_.compare_exchange_weak(used, used + size_bytes, std::memory_order_relaxed));
  return {};
}

void MemoryBudget::give_back(std::uint64_t size_bytes) {
  const std::uint64_t before = used_bytes_.fetch_sub(size_bytes, std::memory_order_relaxed);
  CAIRN_ASSERT(before >= size_bytes, "memory given back twice would be given out twice");
}

Result<Region> map_shared_memory(const SharedMemoryRequest& request,
                                 std::shared_ptr<MemoryBudget> budget) {
  CAIRN_TRY(check_region_size(to_string(request.kind), request.size_bytes));
  CAIRN_TRY(budget->reserve(request.size_bytes));
  Reservation reservation(std::move(budget), request.size_bytes);
  auto opened = request.place.fd < 0 ? new_file(request) : longer_file(request);
  if (!opened) return std::move(opened).error();
  FileDescriptor file = std::move(*opened);
  void* const data = ::mmap(nullptr, request.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            file.get(), static_cast<::off_t>(request.place.offset_bytes));
  if (data == MAP_FAILED) return no_memory(request, "mmap", errno);
  if (request.numa_node >= 0) prefer_node(data, request.size_bytes, request.numa_node);
  const Region::Parts parts{.kind = request.kind,
                            .device_id = request.device_id,
                            .fd = file.get(),
                            .data = static_cast<std::byte*>(data),
                            .size_bytes = request.size_bytes};
  return Region::adopt(parts, std::make_unique<SharedMemory>(
                                  std::move(reservation), std::move(file), data,
                                  RegionView::Part{.offset_bytes = request.place.offset_bytes,
                                                   .size_bytes = request.size_bytes}));
}

int numa_node_of_device(int device_id) {
  if (::numa_available() < 0) return -1;
  std::vector<int> nodes;
  for (int node = 0; node <= ::numa_max_node(); ++node) {
    if (::numa_bitmask_isbitset(::numa_all_nodes_ptr, static_cast<unsigned>(node))) {
      nodes.push_back(node);
    }
  }
  if (nodes.size() < 2) return -1;
  return nodes[static_cast<std::size_t>(device_id) % nodes.size()];
}

std::uint64_t machine_memory_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace cairn

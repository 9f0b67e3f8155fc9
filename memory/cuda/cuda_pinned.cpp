#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "memory/cuda/cuda_memory.hpp"
#include "memory/exported_memory.hpp"

namespace cairn {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
// The kernel clears about 1 GB/s per thread with pages of 4 KiB; with eight threads the memory is
// the limit.
constexpr std::uint64_t kMaxThreads = 8;
// The amount that one thread clears in the time it takes to start some more.
constexpr std::uint64_t kBytesWorthAThread = std::uint64_t{16} << 20;

using Bytes = std::span<std::byte>;

// Allocates the pages of zeroed shared memory; returns the kernel's error number, or 0.
int take_pages(Bytes memory) {
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  // Before Linux 5.14 a page is allocated by writing to it.
  for (std::uint64_t at = 0; at < memory.size(); at += kPageBytes) {
    static_cast<volatile std::byte&>(memory[at]) = std::byte{0};
  }
  return 0;
}

// As take_pages, by several threads.
Result<> populate(Bytes memory) {
  ::madvise(memory.data(), memory.size(), MADV_HUGEPAGE);  // only a hint
  const std::uint64_t threads =
      std::min({kMaxThreads, std::uint64_t{std::max(1u, std::thread::hardware_concurrency())},
                memory.size() / kBytesWorthAThread + 1});
  const std::uint64_t pages = (memory.size() + kPageBytes - 1) / kPageBytes;
  const std::uint64_t share_bytes = (pages + threads - 1) / threads * kPageBytes;
  std::vector<int> errors(threads, 0);
  std::vector<std::jthread> helpers;
  for (std::uint64_t i = 0; i * share_bytes < memory.size(); ++i) {
    const Bytes share =
        memory.subspan(i * share_bytes, std::min(share_bytes, memory.size() - i * share_bytes));
    const auto take = [share, &error = errors[i]] { error = take_pages(share); };
    try {
      if (threads == 1)
        take();
      else
        helpers.emplace_back(take);
    } catch (const std::system_error&) {
      take();  // no thread available: this one does it
    }
  }
  helpers.clear();
  for (const int error : errors) {
    if (error == 0) continue;
    return Error{ErrorCode::no_capacity,
                 "no pages for " + std::to_string(memory.size()) +
                     " bytes of pinned memory: madvise: " + std::generic_category().message(error)};
  }
  return {};
}

// Host memory that is registered piece by piece; the destructor unregisters it.
class CudaPinned final : public RegionBacking {
 public:
  CudaPinned(std::shared_ptr<CudaContext> context, CudaDevice& device, Region memory)
      : context_(std::move(context)), device_(device), memory_(std::move(memory)) {}
  ~CudaPinned() override {
    context_->addresses.erase(memory_.data());
    for (void* const piece : registered_) {
      device_.check_release(cudaHostUnregister(piece),
                            {"cudaHostUnregister", "let go of pinned memory"});
    }
  }

  Result<ExportedMemory> share(const Region&) const override { return memory_.share(); }

  Result<> register_pieces() {
    CAIRN_TRY(device_.enter());
    const std::uint64_t size_bytes = memory_.size_bytes();
    const std::uint64_t piece_bytes = context_->register_piece_bytes;
    for (std::uint64_t begin = 0; begin < size_bytes; begin += piece_bytes) {
      const std::uint64_t length_bytes = std::min(piece_bytes, size_bytes - begin);
      void* const piece = memory_.data() + begin;
      CAIRN_TRY(device_.check(
          cudaHostRegister(piece, length_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
          {"cudaHostRegister", "pin host memory", length_bytes}));
      registered_.push_back(piece);
    }
    context_->addresses.insert({.begin = memory_.data(),
                                .size_bytes = size_bytes,
                                .kind = StorageKind::pinned,
                                .piece_bytes = piece_bytes});
    return {};
  }

  Region::Parts parts() const {
    return {.kind = StorageKind::pinned,
            .fd = memory_.shared_fd(),
            .data = memory_.data(),
            .size_bytes = memory_.size_bytes()};
  }

 private:
  const std::shared_ptr<CudaContext> context_;
  CudaDevice& device_;
  const Region memory_;
  std::vector<void*> registered_;
};

}  // namespace

Result<Region> allocate_cuda_pinned(std::shared_ptr<CudaContext> context,
                                    CudaPinnedRequest request) {
  CudaDevice& device = *context->devices[static_cast<std::size_t>(request.memory.device_id)];
  CAIRN_TRY(device.alive());
  auto memory = map_shared_memory({.kind = StorageKind::pinned,
                                   .size_bytes = request.memory.size_bytes,
                                   .numa_node = request.numa_aware ? device.info().numa_node : -1,
                                   .place = request.place},
                                  context->host_budget);
  if (!memory) return memory;
  // Registering allocates missing pages one by one, in a single thread.
  CAIRN_TRY(populate({memory->data(), memory->size_bytes()}));
  return pin_cuda_memory(std::move(context), std::move(*memory), request.memory.device_id);
}

Result<Region> pin_cuda_memory(std::shared_ptr<CudaContext> context, Region memory, int device_id) {
  CudaDevice& device = *context->devices[static_cast<std::size_t>(device_id)];
  CAIRN_TRY(device.alive());
  auto pinned = std::make_unique<CudaPinned>(std::move(context), device, std::move(memory));
  CAIRN_TRY(pinned->register_pieces());
  const Region::Parts parts = pinned->parts();
  return Region::adopt(parts, std::move(pinned));
}

}  // namespace cairn

// The part of libcudart for kernels. An object compiled by nvcc registers each kernel by a host
// function and the kernel's name. Here the name selects a body for the CPU. It does the work of all
// threads of all blocks, and reaches only memory that the device would reach.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "memory/cuda/copy_kernel.hpp"
#include "memory/cuda/copy_kernel_words.hpp"
#include "tests/fakes/cudart/state.hpp"

namespace cairn::fakes {
namespace {

// Limits of every current device.
constexpr unsigned kMostThreadsOfABlock = 1024;
constexpr unsigned kMostBlocks = 0x7FFF'FFFF;

struct Grid {
  unsigned blocks = 0;
  unsigned threads = 0;
};

cudaError_t copy_words_of(std::byte* destination, const std::byte* source, std::uint64_t words,
                          std::uint64_t word_bytes) {
  const std::uint64_t size_bytes = words * word_bytes;
  if (size_bytes == 0) return cudaSuccess;
  const auto to = state().memory.find(destination, size_bytes);
  const auto from = state().memory.find(source, size_bytes);
  if (!to || !from || to->kind == Kind::pageable || from->kind == Kind::pageable) {
    return cudaErrorIllegalAddress;
  }
  if (reinterpret_cast<std::uintptr_t>(destination) % word_bytes != 0 ||
      reinterpret_cast<std::uintptr_t>(source) % word_bytes != 0) {
    return cudaErrorMisalignedAddress;
  }
  std::memcpy(to->bytes, from->bytes, size_bytes);
  return cudaSuccess;
}

cudaError_t copy_run(std::byte* destination, const std::byte* source, std::uint64_t size_bytes) {
  const CopyWords words = copy_words(reinterpret_cast<std::uintptr_t>(destination),
                                     reinterpret_cast<std::uintptr_t>(source), size_bytes);
  const std::uint64_t middle = words.words * words.word_bytes;
  const std::pair<std::uint64_t, std::uint64_t> steps[] = {
      {words.head_bytes, 1}, {words.words, words.word_bytes}, {words.tail_bytes, 1}};
  const std::uint64_t at[] = {0, words.head_bytes, words.head_bytes + middle};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto [count, width] = steps[i];
    const cudaError_t copied = copy_words_of(destination + at[i], source + at[i], count, width);
    if (copied != cudaSuccess) return copied;
  }
  return cudaSuccess;
}

// Runs the shares of a launch in the fake's own order: CUDA does not promise an order of thread
// blocks.
template <std::size_t capacity>
cudaError_t copy_table(const CopyTable<capacity>& table, Grid grid) {
  if (table.pieces == 0 || table.pieces > capacity || table.parts == 0) {
    return cudaErrorIllegalAddress;  // the real one would read past the table
  }
  std::vector<std::uint32_t> shares;
  for (std::uint32_t block = 0; block < grid.blocks; ++block) {
    for (std::uint32_t share = block; share < table.pieces * table.parts; share += grid.blocks) {
      shares.push_back(share);
    }
  }
  std::shuffle(shares.begin(), shares.end(), std::mt19937(table.pieces));
  for (const std::uint32_t share : shares) {
    const MemoryCopy& piece = table.piece[share / table.parts];
    const CopyPart part = copy_part(piece.size_bytes, share % table.parts, table.parts);
    const cudaError_t copied =
        copy_run(piece.destination + part.begin, piece.source + part.begin, part.end - part.begin);
    if (copied != cudaSuccess) return copied;
  }
  return cudaSuccess;
}

// Copies the arguments of a launch, as CUDA does before it returns, and returns the work.
using Body = Engine::Work (*)(void** arguments, Grid grid);

template <std::size_t capacity>
Engine::Work copy_body(void** arguments, Grid grid) {
  return [table = *static_cast<const CopyTable<capacity>*>(arguments[0]), grid] {
    return copy_table(table, grid);
  };
}

const std::map<std::string, Body>& bodies() {
  static const std::map<std::string, Body> all = {{"cairn_copy_small", copy_body<kSmallCopyTable>},
                                                  {"cairn_copy_large", copy_body<kLargeCopyTable>}};
  return all;
}

// The registered kernels, by their host functions.
class Kernels {
 public:
  void add(const void* host_function, const char* name) {
    const std::lock_guard lock(mutex_);
    names_[host_function] = name;
  }
  Body body(const void* host_function) const {
    const std::lock_guard lock(mutex_);
    const auto name = names_.find(host_function);
    if (name == names_.end()) return nullptr;
    const auto found = bodies().find(name->second);
    return found == bodies().end() ? nullptr : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const void*, std::string> names_;
};

// Never destroyed: objects unregister after the program's statics are gone.
Kernels& kernels() {
  static Kernels& only = *new Kernels;
  return only;
}

}  // namespace
}  // namespace cairn::fakes

using namespace cairn::fakes;

extern "C" {

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  const std::optional<int> device = state().engine.device_of(stream);
  if (!device) return answer(cudaErrorInvalidResourceHandle);  // the NULL stream, too
  return call("cudaLaunchKernel", *device, [&] {
    const Body body = kernels().body(function);
    if (body == nullptr) return cudaErrorInvalidDeviceFunction;
    if (grid.x == 0 || grid.x > kMostBlocks || grid.y != 1 || grid.z != 1 || block.x == 0 ||
        block.x > kMostThreadsOfABlock || block.y != 1 || block.z != 1 || shared_bytes != 0) {
      return cudaErrorInvalidConfiguration;
    }
    return state().engine.run(stream, body(arguments, {grid.x, block.x}));
  });
}

// Objects compiled by nvcc call these when they are loaded. No public header declares them.
void** __cudaRegisterFatBinary(void* /*binary*/) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
void __cudaUnregisterFatBinary(void** /*handle*/) {}
void __cudaRegisterFunction(void** /*handle*/, const char* host_function, char* /*device_function*/,
                            const char* device_name, int /*thread_limit*/, uint3* /*thread*/,
                            uint3* /*block*/, dim3* /*block_size*/, dim3* /*grid_size*/,
                            int* /*warp_size*/) {
  kernels().add(host_function, device_name);
}

// For the <<< >>> form, which this project does not use: a kernel launched that way must not be
// lost silently.
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) { return 1; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) {
  return answer(cudaErrorNotSupported);
}
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return answer(cudaErrorNotSupported); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return answer(cudaErrorNotSupported);
}

}  // extern "C"

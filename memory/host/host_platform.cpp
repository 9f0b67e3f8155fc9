#include "memory/host/host_platform.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

#include "base/file_descriptor.hpp"
#include "memory/mapping.hpp"

namespace cairn {
namespace {

// Two pages: caches that are indexed by virtual addresses may tell one from the other.
constexpr std::size_t kProbedBytes = 8192;
// A byte per cache line would do. An odd distance also visits each place within a line.
constexpr std::size_t kProbeStepBytes = 61;

// Volatile: the compiler knows nothing of the other address.
bool is_seen(volatile unsigned char* written, const volatile unsigned char* read) {
  for (std::size_t at = 0; at < kProbedBytes; at += kProbeStepBytes) {
    const auto before = read[at];  // a cache that keeps old bytes has them now
    const auto value = static_cast<unsigned char>(before + 1 + at);
    written[at] = value;
    if (read[at] != value) return false;
  }
  return true;
}

}  // namespace

HostMemoryFacts read_host_memory_facts() {
  HostMemoryFacts facts;
  const FileDescriptor file(::memfd_create("cairn-probe", MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<::off_t>(kProbedBytes)) != 0) return facts;
  const auto map = [&] {
    return ::mmap(nullptr, kProbedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  };
  void* const one = map();
  if (one == MAP_FAILED) return facts;
  const Mapping first(one, kProbedBytes);
  void* const two = map();
  if (two == MAP_FAILED) return facts;
  const Mapping second(two, kProbedBytes);
  facts.can_be_shared = true;
  auto* const here = static_cast<volatile unsigned char*>(one);
  auto* const there = static_cast<volatile unsigned char*>(two);
  facts.is_seen_at_once = is_seen(here, there) && is_seen(there, here);
  return facts;
}

MemoryVisibility host_visibility(const HostMemoryFacts& facts) {
  if (!facts.can_be_shared) return MemoryVisibility::device;
  return facts.is_seen_at_once ? MemoryVisibility::system : MemoryVisibility::explicit_dma;
}

}  // namespace cairn

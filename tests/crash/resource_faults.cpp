// Preloaded between a server and the system (LD_PRELOAD): memory runs out, and threads cannot be
// created.
//
//   CAIRN_FAULTS_THREAD  the n-th and every later pthread_create fails with EAGAIN
//   CAIRN_FAULTS_MEMORY  a file of four i64 that the test and this library share:
//                        [0] how many allocations still succeed; kAll or less: all
//                        [1] how many have failed
//                        [2] all fail until that many pieces of 512 KiB or more, like a reserve's,
//                            were freed, or [0] is kAll again; 0: only one fails
//                        [3] allocated bytes
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* memory);
}

namespace {

constexpr std::int64_t kReservedPiece = 512u << 10;
constexpr std::int64_t kAll = -1000;

struct Shared {
  std::atomic<std::int64_t> left;
  std::atomic<std::int64_t> failed;
  std::atomic<std::int64_t> pieces;
  std::atomic<std::int64_t> held_bytes;
};
std::atomic<Shared*> shared{nullptr};
std::atomic<std::int64_t> pieces_left{0};  // pieces left to free while all fail

[[gnu::constructor]] void open_remote() {
  const char* const path = std::getenv("CAIRN_FAULTS_MEMORY");
  if (path == nullptr) return;
  const int fd = ::open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) std::abort();
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) std::abort();
  shared = static_cast<Shared*>(memory);
}

bool fails() {
  Shared* const faults = shared.load(std::memory_order_relaxed);
  if (faults == nullptr) return false;
  if (faults->left.load() <= kAll) {
    pieces_left = 0;
    return false;
  }
  if (pieces_left.load() <= 0) {
    if (faults->left.fetch_sub(1) != 0) return false;
    pieces_left = faults->pieces.load();
  }
  faults->failed.fetch_add(1);
  errno = ENOMEM;
  return true;
}

std::int64_t size_of(void* memory) {
  return memory == nullptr ? 0 : static_cast<std::int64_t>(::malloc_usable_size(memory));
}

void* held(void* memory) {
  if (Shared* const faults = shared.load(std::memory_order_relaxed)) {
    faults->held_bytes.fetch_add(size_of(memory), std::memory_order_relaxed);
  }
  return memory;
}

void given_back(std::int64_t bytes) {
  if (bytes >= kReservedPiece && pieces_left.load(std::memory_order_relaxed) > 0) --pieces_left;
  if (Shared* const faults = shared.load(std::memory_order_relaxed)) {
    faults->held_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  }
}

}  // namespace

extern "C" {

void* malloc(std::size_t size) { return fails() ? nullptr : held(__libc_malloc(size)); }
void* calloc(std::size_t count, std::size_t size) {
  return fails() ? nullptr : held(__libc_calloc(count, size));
}
void* realloc(void* memory, std::size_t size) {
  if (fails()) return nullptr;
  const std::int64_t before = size_of(memory);
  void* const moved = __libc_realloc(memory, size);
  if (moved == nullptr && size > 0) return nullptr;
  given_back(before);
  return held(moved);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return fails() ? nullptr : held(__libc_memalign(alignment, size));
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  if (fails()) return ENOMEM;
  *memory = held(__libc_memalign(alignment, size));
  return *memory == nullptr ? ENOMEM : 0;
}
void free(void* memory) {
  if (memory == nullptr) return;
  given_back(size_of(memory));
  __libc_free(memory);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                   void* argument) {
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static auto* const real = reinterpret_cast<Create*>(::dlsym(RTLD_NEXT, "pthread_create"));
  static std::atomic<std::int64_t> created{0};
  const char* const from = std::getenv("CAIRN_FAULTS_THREAD");
  if (from != nullptr && ++created >= std::strtoll(from, nullptr, 10)) return EAGAIN;
  return real(thread, attributes, work, argument);
}

}  // extern "C"

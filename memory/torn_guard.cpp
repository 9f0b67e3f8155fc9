#include "memory/torn_guard.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <string>

namespace cairn {

// A handler can only use static data. make() writes `first` last, so a range that the handler finds
// is complete.
struct TornGuard::Watched {
  std::atomic<bool> taken{false};
  std::atomic<bool> torn{false};
  std::atomic<std::size_t> size_bytes{0};
  std::atomic<std::uintptr_t> first{0};  // 0: no range
};

struct TornGuard::Table {
  std::array<Watched, kMax> watched;
  struct sigaction before {};
  std::once_flag installed;

  static Table& only() {
    static Table table;
    return table;
  }

  // Returns true if the address's range was replaced.
  bool replace(std::uintptr_t at) {
    for (Watched& one : watched) {
      const std::uintptr_t first = one.first.load(std::memory_order_acquire);
      if (first == 0 || at < first) continue;
      const std::size_t size_bytes = one.size_bytes.load(std::memory_order_relaxed);
      if (at - first >= size_bytes) continue;
      one.torn.store(true, std::memory_order_release);
      // The bare system call: sanitizers and libraries may take locks in theirs.
      const long mapped = ::syscall(SYS_mmap, first, size_bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
      return mapped != -1;
    }
    return false;
  }

  static void on_bus_error(int signal, siginfo_t* info, void*) {
    const int error_number = errno;
    // Other faults occur again, with the previous action, when this returns.
    if (!only().replace(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
      ::sigaction(signal, &only().before, nullptr);
    }
    errno = error_number;
  }

  void install() {
    struct sigaction action {};
    action.sa_sigaction = &on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &before);
  }
};

TornGuard::TornGuard(Watched* watched) : watched_(watched) {}

TornGuard::~TornGuard() = default;

void TornGuard::Release::operator()(Watched* watched) const {
  watched->first.store(0, std::memory_order_release);
  watched->taken.store(false, std::memory_order_release);
}

Result<TornGuard> TornGuard::make(std::span<std::byte> mapped) {
  Table& table = Table::only();
  std::call_once(table.installed, [&] { table.install(); });
  for (Watched& one : table.watched) {
    if (one.taken.exchange(true, std::memory_order_acquire)) continue;
    one.torn.store(false, std::memory_order_relaxed);
    one.size_bytes.store(mapped.size(), std::memory_order_relaxed);
    one.first.store(reinterpret_cast<std::uintptr_t>(mapped.data()), std::memory_order_release);
    return TornGuard(&one);
  }
  return Error{ErrorCode::too_many,
               std::to_string(kMax) + " files are mapped under guard, and no more may be"};
}

bool TornGuard::is_torn() const { return watched_->torn.load(std::memory_order_acquire); }

}  // namespace cairn

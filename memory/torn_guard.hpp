#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.hpp"

namespace cairn {

// Mapped memory of a file that another process may truncate. Touching the missing part would kill
// the process by SIGBUS. With a guard, the whole range becomes private memory of this process
// instead, and is_torn() returns true: bytes copied from or to it do not count. A process has one
// SIGBUS handler: the first guard sets it, and it passes on signals that concern no guard.
// Move-only; any thread may create and destroy it.
class TornGuard {
 public:
  // Guards at a time: the handler checks each. An agent has one for each of its files.
  static constexpr std::size_t kMax = 4096;

  // For whole pages that stay mapped until the guard is destroyed. too_many: kMax.
  static Result<TornGuard> make(std::span<std::byte> mapped);
  TornGuard(TornGuard&& other) noexcept = default;
  TornGuard& operator=(TornGuard&& other) noexcept = default;
  ~TornGuard();

  bool is_torn() const;

 private:
  struct Watched;
  struct Release {
    void operator()(Watched* watched) const;
  };
  struct Table;
  explicit TornGuard(Watched* watched);
  std::unique_ptr<Watched, Release> watched_;
};

}  // namespace cairn

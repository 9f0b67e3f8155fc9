#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.hpp"

namespace cairn {

// Mapped memory of a file that somebody else may cut off. Touching what is gone by then ends the
// process by SIGBUS; where a guard stands, the whole range becomes memory of this process's own
// instead, and is_torn() tells so: what was copied out of it or into it counts for nothing. The
// signal is one of the process's, so is its handler: it is set by the first guard, and passes on
// what no guard is about. Move-only; made and destroyed by any thread.
class TornGuard {
 public:
  // Guards at a time: each is looked at by the handler. An agent has one for each of its files.
  static constexpr std::size_t kMax = 4096;

  // Of whole pages that stay mapped until the guard has gone. too_many: kMax.
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

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "transport/collective/link_socket.hpp"

namespace cairn {

// Finds the numbers of hosts. The system's resolver takes as long as it likes and cannot be told to
// stop, so each look-up has a thread of its own, which is left behind where nobody waits for it any
// more. Thread-safe.
class HostNames {
 public:
  // The number of a host, as text. Called from any thread, also after the HostNames is gone.
  using Resolver = std::function<Result<std::string>(const std::string& host)>;
  // The system's: unavailable, with its words.
  HostNames();
  explicit HostNames(Resolver resolver);

  // More at a time are answered with unavailable: as many as a server may have groups, and threads
  // of those that were left.
  static constexpr std::size_t kMaxLookups = 64;

  // What the resolver answers; deadline_exceeded; cancelled. A number is answered at once.
  Result<std::string> find(const std::string& host, const LinkWait& wait) const;

 private:
  struct Shared;
  struct Lookup;
  std::shared_ptr<Shared> shared_;
};

}  // namespace cairn

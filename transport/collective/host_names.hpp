#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "transport/collective/link_socket.hpp"

namespace cairn {

// Resolves host names. The system's resolver has no timeout and cannot be cancelled, so each lookup
// runs on its own thread. A thread whose caller has given up is left to finish. Thread-safe.
class HostNames {
 public:
  // Returns the host's numeric address as text. Called on any thread, also after HostNames is
  // destroyed.
  using Resolver = std::function<Result<std::string>(const std::string& host)>;
  // Uses the system's resolver. It fails with unavailable and the resolver's message.
  HostNames();
  explicit HostNames(Resolver resolver);

  // Lookups at a time, abandoned ones included; one more returns unavailable. As many as a server
  // may have groups.
  static constexpr std::size_t kMaxLookups = 64;

  // Returns the resolver's answer, deadline_exceeded or cancelled. A numeric address returns at
  // once.
  Result<std::string> find(const std::string& host, const LinkWait& wait) const;

 private:
  struct Shared;
  struct Lookup;
  std::shared_ptr<Shared> shared_;
};

}  // namespace cairn

#include "transport/collective/host_names.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/mutex.hpp"
#include "base/thread.hpp"

namespace cairn {
namespace {

// Returns the host's first address as text.
Result<std::string> number_of(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return Error{ErrorCode::unavailable, "host " + host + ": " + ::gai_strerror(error)};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, ::freeaddrinfo);
  std::array<char, NI_MAXHOST> number{};
  const int error = ::getnameinfo(list->ai_addr, list->ai_addrlen, number.data(), number.size(),
                                  nullptr, 0, NI_NUMERICHOST);
  if (error != 0) {
    return Error{ErrorCode::unavailable, "host " + host + ": " + ::gai_strerror(error)};
  }
  return std::string(number.data());
}

}  // namespace

struct HostNames::Shared {
  explicit Shared(Resolver with) : resolver(std::move(with)) {}

  const Resolver resolver;
  std::atomic<std::size_t> lookups = 0;
};

// Shared by the caller that waits and the lookup's thread.
struct HostNames::Lookup {
  Lookup(std::shared_ptr<Shared> owner, std::string name)
      : shared(std::move(owner)), host(std::move(name)), ended(::eventfd(0, EFD_CLOEXEC)) {
    over_the_limit = shared->lookups.fetch_add(1) >= kMaxLookups;
  }
  ~Lookup() {
    shared->lookups.fetch_sub(1);
    if (ended >= 0) ::close(ended);
  }
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;

  void run() {
    auto found = shared->resolver(host);
    MutexLock lock(mutex);
    answer = std::move(found);
    const std::uint64_t one = 1;
    // Cannot fail: this is the only write.
    static_cast<void>(!::write(ended, &one, sizeof one));
  }

  const std::shared_ptr<Shared> shared;
  const std::string host;
  const int ended;
  bool over_the_limit = false;
  Mutex mutex;
  std::optional<Result<std::string>> answer CAIRN_GUARDED_BY(mutex);
};

HostNames::HostNames() : HostNames([](const std::string& host) { return number_of(host, 0); }) {}

HostNames::HostNames(Resolver resolver) : shared_(std::make_shared<Shared>(std::move(resolver))) {}

Result<std::string> HostNames::find(const std::string& host, const LinkWait& wait) const {
  if (auto number = number_of(host, AI_NUMERICHOST)) return number;
  const auto lookup = std::make_shared<Lookup>(shared_, host);
  if (lookup->over_the_limit) {
    return Error{ErrorCode::unavailable, "host " + host + ": " + std::to_string(kMaxLookups) +
                                             " names are being looked up already"};
  }
  if (lookup->ended < 0) {
    return Error{ErrorCode::unavailable, "host " + host + ": eventfd: " + std::strerror(errno)};
  }
  try {
    std::thread([lookup] { guarded("host name", [&] { lookup->run(); }); }).detach();
  } catch (const std::system_error& error) {
    return Error{ErrorCode::unavailable, "host " + host + ": no thread: " + error.what()};
  }
  if (auto ended = wait_for_socket(lookup->ended, POLLIN, wait); !ended) {
    return Error{ended.error().code,
                 "host " + host + " is being looked up: " + ended.error().detail};
  }
  MutexLock lock(lookup->mutex);
  return std::move(*lookup->answer);
}

}  // namespace cairn

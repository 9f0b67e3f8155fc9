#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "server/auth/tokens.hpp"
#include "server/http/message.hpp"

namespace cairn {

// Identifies the sender of a request by its Authorization field. Thread-safe.
class Gate {
 public:
  // Borrows the clock. `max_leased_blocks` is the default for tokens without this setting.
  static Result<std::unique_ptr<Gate>> open(std::string tokens_path, const Clock& clock,
                                            std::uint64_t max_leased_blocks = kMaxLeasedBlocks);

  // Accepts `Bearer TOKEN`; for GET and HEAD also `Basic`, as browsers send it, with the token as
  // password. Errors: unauthorized; too_many if the token's rate is used up.
  Result<std::shared_ptr<const Caller>> admit(const http::RequestHead& head) const;
  // The owner of the token that the request presents, whether or not it is admitted; null if
  // unknown. For the log.
  std::shared_ptr<const Caller> presented(const http::RequestHead& head) const;

  // Changes each time the file is read again.
  std::uint64_t generation() const { return generation_.load(); }
  // The current owner of the caller's token, perhaps with other rights; null if it is gone.
  std::shared_ptr<const Caller> now(const Caller& caller) const;

  // Reads the file again and returns the number of tokens. On failure the tokens stay unchanged.
  Result<std::size_t> reload();

 private:
  Gate(std::string path, const Clock& clock, std::uint64_t max_leased_blocks, TokenSet tokens);
  std::shared_ptr<const TokenSet> tokens() const;

  const std::string path_;
  const Clock& clock_;
  const std::uint64_t max_leased_blocks_;
  std::atomic<std::uint64_t> generation_{0};
  mutable Mutex mutex_;
  std::shared_ptr<const TokenSet> tokens_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn

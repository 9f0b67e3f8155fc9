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

// Tells who sends a request by its Authorization field. Thread-safe.
class Gate {
 public:
  // Borrows the clock. `max_leased_blocks` is for tokens that say nothing of it.
  static Result<std::unique_ptr<Gate>> open(std::string tokens_path, const Clock& clock,
                                            std::uint64_t max_leased_blocks = kMaxLeasedBlocks);

  // `Bearer TOKEN`, or for what only looks (GET and HEAD) also `Basic`, as browsers write it, with
  // the token as the password. unauthorized; too_many, where the token's rate is used up.
  Result<std::shared_ptr<const Caller>> admit(const http::RequestHead& head) const;
  // Whose token is presented, whether or not it lets this request in; null: nobody's. For the log.
  std::shared_ptr<const Caller> presented(const http::RequestHead& head) const;

  // Another number where the file was read again.
  std::uint64_t generation() const { return generation_.load(); }
  // Who has the caller's token now, with other rights maybe; null where it is gone.
  std::shared_ptr<const Caller> now(const Caller& caller) const;

  // Reads the file again. Where that fails the tokens stay as they were. Answers how many there
  // are.
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

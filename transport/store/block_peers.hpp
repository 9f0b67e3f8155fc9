#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "transport/store/shared_store.hpp"

namespace cairn {

// Other servers, and what is read from them over HTTP. Nothing of it is to be believed: who reads
// it checks it. Thread-safe; no call waits, and each `done` runs exactly once, on a thread of this
// one's, which it must not hold up.
//
// Errors: unavailable (it is not reached, or left alone since it failed), wrong_length, io_error
// (it refused), malformed (no such server), queue_full, cancelled (this ends).
class BlockPeers {
 public:
  virtual ~BlockPeers() = default;

  struct Read {
    std::string server;            // http://HOST[:PORT], https://HOST[:PORT] or unix:/PATH
    std::string target;            // the path, and what follows it
    std::string body = {};         // JSON, of a POST
    std::vector<iovec> into = {};  // this one's until the end
    // The answer has whole parts: as many as there is room for, or fewer.
    std::uint64_t part_bytes = 0;
  };
  // How many parts have come, from the first on. None where the server knows of nothing (404).
  virtual void read(Read read, UniqueFunction<void(Result<std::size_t>)> done) = 0;

  struct Stats {
    SharedStoreStats::Operation reads;
    std::vector<SharedStoreStats::Node> servers;
    std::vector<NodeDurations::OfNode> by_server = {};  // reads
  };
  virtual Stats stats() const = 0;
};

}  // namespace cairn

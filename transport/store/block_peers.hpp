#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "transport/store/remote_store.hpp"

namespace cairn {

// Reads blocks from other servers over HTTP. The caller must check what it gets: the servers are
// not trusted. Thread-safe. No call blocks. Each `done` runs exactly once, on this object's thread,
// which it must not delay.
// Errors: unavailable (not reached, or in its pause after a failure), wrong_length, io_error (the
// server refused), malformed (not a valid server), queue_full, cancelled (this object is being
// destroyed).
class BlockPeers {
 public:
  virtual ~BlockPeers() = default;

  struct Read {
    std::string server;            // http://HOST[:PORT], https://HOST[:PORT] or unix:/PATH
    std::string target;            // path and query
    std::string body = {};         // JSON; the request is a POST
    std::vector<iovec> into = {};  // must stay valid until `done`
    // The response consists of whole parts: as many as `into` has room for, or fewer.
    std::uint64_t part_bytes = 0;
  };
  // Returns how many leading parts have arrived; 0 if the server returned 404.
  virtual void read(Read read, UniqueFunction<void(Result<std::size_t>)> done) = 0;

  struct Stats {
    RemoteStoreStats::Operation reads;
    std::vector<RemoteStoreStats::Node> servers;
    std::vector<NodeDurations::OfNode> by_server = {};  // reads only
  };
  virtual Stats stats() const = 0;
};

}  // namespace cairn

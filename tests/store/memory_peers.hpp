#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/hex.hpp"
#include "blockmgr/shared/shared_context.hpp"
#include "tests/blockmgr/rig.hpp"
#include "transport/collective/pieces.hpp"
#include "transport/store/block_peers.hpp"

namespace cairn::testing {

// Servers that answer at once what a server's route answers, and lie where they are told to.
class MemoryPeers final : public BlockPeers {
 public:
  struct Server {
    Rig* rig = nullptr;
    std::shared_ptr<Cache> cache;
  };

  void read(Read read, UniqueFunction<void(Result<bool>)> done) override {
    asked.push_back(read.server);
    const auto server = servers.find(read.server);
    const bool fails = static_cast<int>(asked.size()) == failing_call;
    if (server == servers.end() || down.count(read.server) > 0 || fails) {
      return done(Error{ErrorCode::unavailable, read.server + " is down"});
    }
    Bytes answer = answer_of(server->second, read.target);
    if (answer.empty()) return done(false);
    if (spoil) spoil(read.server, answer);
    std::size_t size = 0;
    for (const iovec& piece : read.into) size += piece.iov_len;
    if (size != answer.size()) return done(Error{ErrorCode::wrong_length, "another length"});
    const std::byte* from = answer.data();
    for (const iovec& piece : read.into) {
      std::memcpy(piece.iov_base, from, piece.iov_len);
      from += piece.iov_len;
    }
    done(true);
  }
  Stats stats() const override { return {}; }

  std::map<std::string, Server> servers;  // by URL
  std::set<std::string> down;
  std::function<void(const std::string& server, Bytes& answer)> spoil;
  std::vector<std::string> asked;
  int failing_call = 0;  // from 1 on; 0: none

 private:
  // "/v1/caches/CACHE/keys/HEX?shared=NAMESPACE"
  static Bytes answer_of(const Server& server, const std::string& target) {
    const auto query = target.find("?shared=");
    const auto slash = target.rfind('/', query);
    Bytes key_bytes((query - slash - 1) / 2);
    const bool is_key = from_hex(target.substr(slash + 1, query - slash - 1), key_bytes);
    const CacheConfig& config = server.cache->config();
    if (!is_key || target.substr(query + 8) != shared_namespace(config)) return {};
    const BlockKey key(key_bytes);
    auto reader = server.cache->lend(key);
    if (!reader) return {};
    const auto pieces = server.rig->await<std::span<const iovec>>(
        [&](auto done) { reader->fetch(std::move(done)); });
    if (!pieces) return {};
    const SharedHeader header =
        write_shared_header(fingerprint_of(config.shape), {.key = key,
                                                           .parent = server.cache->parent(key),
                                                           .size_bytes = reader->size_bytes(),
                                                           .checksum = checksum_of(*pieces)});
    Bytes answer(header.size() + reader->size_bytes());
    std::memcpy(answer.data(), header.data(), header.size());
    std::byte* to = answer.data() + header.size();
    for (const iovec& piece : *pieces) {
      std::memcpy(to, piece.iov_base, piece.iov_len);
      to += piece.iov_len;
    }
    return answer;
  }
};

// The same, for one of those who ask.
class LentPeers final : public BlockPeers {
 public:
  explicit LentPeers(MemoryPeers& peers) : peers_(peers) {}
  void read(Read read, UniqueFunction<void(Result<bool>)> done) override {
    peers_.read(std::move(read), std::move(done));
  }
  Stats stats() const override { return {}; }

 private:
  MemoryPeers& peers_;
};

}  // namespace cairn::testing

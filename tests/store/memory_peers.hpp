#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/hex.hpp"
#include "base/pieces.hpp"
#include "blockmgr/remote_tier/remote_context.hpp"
#include "tests/blockmgr/rig.hpp"
#include "transport/store/block_peers.hpp"

namespace cairn::testing {

// Servers that answer reads at once, like a server's HTTP route. Tests can spoil their answers.
class MemoryPeers final : public BlockPeers {
 public:
  struct Server {
    Rig* rig = nullptr;
    std::shared_ptr<Cache> cache;
  };

  void read(Read read, UniqueFunction<void(Result<std::size_t>)> done) override {
    // `done` may read again.
    done(read_now(read));
  }
  Stats stats() const override { return {}; }

  std::map<std::string, Server> servers;  // by URL
  std::set<std::string> down;
  std::function<void(const std::string& server, Bytes& answer)> spoil;
  std::vector<std::string> asked;
  int failing_call = 0;  // counted from 1; 0: none

 private:
  Result<std::size_t> read_now(const Read& read) {
    const std::lock_guard lock(mutex_);
    asked.push_back(read.server);
    const auto server = servers.find(read.server);
    const bool fails = static_cast<int>(asked.size()) == failing_call;
    if (server == servers.end() || down.count(read.server) > 0 || fails) {
      return Error{ErrorCode::unavailable, read.server + " is down"};
    }
    Bytes answer;
    for (const BlockKey& key : keys_of(read.body)) {
      Bytes part = part_of(server->second, read.target, key);
      if (part.empty()) break;
      if (spoil) spoil(read.server, part);
      answer.insert(answer.end(), part.begin(), part.end());
    }
    if (answer.size() % read.part_bytes != 0) {
      return Error{ErrorCode::wrong_length, "another length"};
    }
    const std::byte* from = answer.data();
    std::size_t left = answer.size();
    for (const iovec& piece : read.into) {
      const std::size_t some = std::min(left, piece.iov_len);
      std::memcpy(piece.iov_base, from, some);
      from += some;
      left -= some;
    }
    return answer.size() / read.part_bytes;
  }

  std::mutex mutex_;  // the scheduler's threads read, too

  // {"keys":["HEX","HEX"]}
  static std::vector<BlockKey> keys_of(const std::string& body) {
    std::vector<BlockKey> keys;
    for (auto at = body.find("[\""); at != std::string::npos; at = body.find(",\"", at)) {
      at += 2;
      Bytes bytes((body.find('"', at) - at) / 2);
      if (!from_hex(body.substr(at, 2 * bytes.size()), bytes)) return {};
      keys.emplace_back(bytes);
    }
    return keys;
  }

  // "/v1/caches/CACHE/read?shared=NAMESPACE"
  static Bytes part_of(const Server& server, const std::string& target, const BlockKey& key) {
    const CacheConfig& config = server.cache->config();
    if (target != "/v1/caches/" + config.name + "/read?shared=" + shared_namespace(config)) {
      return {};
    }
    auto reader = server.cache->lend(key);
    if (!reader) return {};
    const auto pieces = server.rig->await<std::span<const iovec>>(
        [&](auto done) { reader->fetch(std::move(done)); });
    if (!pieces) return {};
    const RemoteHeader header = write_remote_header(fingerprint_of(config, key.kv_group()),
                                                    {.key = key,
                                                     .parent = server.cache->parent(key),
                                                     .size_bytes = reader->size_bytes(),
                                                     .checksum = checksum_of(*pieces)});
    Bytes answer(reader->size_bytes() + header.size());
    std::byte* to = answer.data();
    for (const iovec& piece : *pieces) {
      std::memcpy(to, piece.iov_base, piece.iov_len);
      to += piece.iov_len;
    }
    std::memcpy(to, header.data(), header.size());
    return answer;
  }
};

// Lends a MemoryPeers to one host.
class LentPeers final : public BlockPeers {
 public:
  explicit LentPeers(MemoryPeers& peers) : peers_(peers) {}
  void read(Read read, UniqueFunction<void(Result<std::size_t>)> done) override {
    peers_.read(std::move(read), std::move(done));
  }
  Stats stats() const override { return {}; }

 private:
  MemoryPeers& peers_;
};

}  // namespace cairn::testing

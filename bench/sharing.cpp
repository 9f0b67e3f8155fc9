// Blocks from one process to another in a group, against a plain socket copy of the same bytes
// between the same two processes, turn by turn. Prints a line of JSON.

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <latch>
#include <string>
#include <vector>

#include "bench/bench_rig.hpp"

namespace cairn {
namespace {

constexpr std::uint64_t kTotalBytes = 256ull << 20;
constexpr int kTurns = 8;
constexpr std::uint64_t kBlockBytes[] = {64ull << 10, 256ull << 10, 1ull << 20, 2ull << 20,
                                         8ull << 20};

void check(bool fine, const char* what) {
  if (fine) return;
  std::perror(what);
  std::abort();
}

// A connection to the other process: for words and for the yardstick.
class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  void send(const void* bytes, std::size_t size) const {
    const char* at = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t sent = ::send(fd_, at, size, 0);
      check(sent > 0, "send");
      at += sent;
      size -= static_cast<std::size_t>(sent);
    }
  }
  void receive(void* bytes, std::size_t size) const {
    char* at = static_cast<char*>(bytes);
    while (size > 0) {
      const ssize_t got = ::recv(fd_, at, size, 0);
      check(got > 0, "recv");
      at += got;
      size -= static_cast<std::size_t>(got);
    }
  }
  void signal() const { send("!", 1); }
  void wait() const {
    char one = 0;
    receive(&one, 1);
  }

 private:
  int fd_;
};

// Over TCP, as a group's connections are. The child's end is the one that connects.
struct Pair {
  int parent = -1;
  int child = -1;
};
Pair tcp_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  check(::bind(listener, generic, length) == 0 && ::listen(listener, 1) == 0 &&
            ::getsockname(listener, generic, &length) == 0,
        "listen");
  Pair pair{.parent = -1, .child = ::socket(AF_INET, SOCK_STREAM, 0)};
  check(::connect(pair.child, generic, length) == 0, "connect");
  pair.parent = ::accept(listener, nullptr, nullptr);
  check(pair.parent >= 0, "accept");
  ::close(listener);
  return pair;
}

class Side {
 public:
  explicit Side(std::uint32_t rank) : rank_(rank) {}

  void join(const Channel& other) {
    GroupJoin request{.name = "g", .place = {.rank = rank_, .world_size = 2}};
    std::uint64_t size = 0;
    if (rank_ == 1) {
      other.receive(&size, sizeof size);
      request.unique_id.resize(size);
      other.receive(request.unique_id.data(), size);
    }
    Awaited<GroupInfo> joined;
    rig_.manager.groups().join(request, joined.done());
    const GroupInfo info = must(joined.wait());
    if (rank_ == 1) return;
    size = info.unique_id.size();
    other.send(&size, sizeof size);
    other.send(info.unique_id.data(), size);
  }

  void make_cache(std::uint64_t block_bytes) {
    CacheConfig config;
    config.name = "c" + std::to_string(block_bytes);
    config.shape = {.num_layers = 8,
                    .outer_dim = 2,
                    .page_size = 16,
                    .inner_dim = block_bytes / (8 * 2 * 16 * 2),
                    .dtype_width_bytes = 2};
    config.tiers[index_of(Tier::pinned)] =
        TierConfig{.num_blocks = static_cast<std::uint32_t>(kTotalBytes / block_bytes)};
    cache_ = must(rig_.manager.create_cache(config)).cache;
    keys_.clear();
    for (std::uint64_t i = 0; i < kTotalBytes / block_bytes; ++i) {
      keys_.emplace_back(std::as_bytes(std::span(&i, 1)));
    }
  }
  void drop_cache() {
    const std::string name = cache_->config().name;
    cache_.reset();
    must(rig_.manager.drop_cache(name, true));
  }

  // All keys of the cache; of zeros, each written once.
  void fill_cache() { fill(*cache_, keys_, Kinship::strangers); }
  void clear() { must(cache_->clear(std::nullopt)); }

  void share() {
    const TransferId id = must(rig_.manager.groups().share(
        "g", {.kind = rank_ == 0 ? CollectiveKind::send : CollectiveKind::recv,
              .cache = cache_,
              .keys = keys_,
              .other = 1 - rank_}));
    std::latch ended(1);
    must(rig_.manager.watch_transfer(id, [&](const TransferStatus& status) {
      check(status.state == TransferState::done && status.bytes == kTotalBytes, "share");
      ended.count_down();
    }));
    ended.wait();
  }
  std::byte* memory() const { return cache_->layout(Tier::pinned)->address({}); }

 private:
  const std::uint32_t rank_;
  BenchRig rig_;
  std::shared_ptr<Cache> cache_;
  std::vector<BlockKey> keys_;
};

void run_child(const Channel& parent) {
  Side side(1);
  side.join(parent);
  std::vector<std::byte> plain(kTotalBytes, std::byte{1});
  for (std::uint64_t block_bytes : kBlockBytes) {
    side.make_cache(block_bytes);
    for (int turn = 0; turn <= kTurns; ++turn) {
      side.clear();
      parent.signal();
      parent.receive(plain.data(), plain.size());
      parent.signal();
      parent.wait();
      side.share();
    }
    side.drop_cache();
  }
}

void run_parent(const Channel& child) {
  using Seconds = std::chrono::duration<double>;
  Side side(0);
  side.join(child);
  std::string rows;
  for (std::uint64_t block_bytes : kBlockBytes) {
    side.make_cache(block_bytes);
    side.fill_cache();
    Seconds plain{};
    Seconds shared{};
    for (int turn = 0; turn <= kTurns; ++turn) {
      child.wait();
      const auto start = std::chrono::steady_clock::now();
      child.send(side.memory(), kTotalBytes);
      child.wait();
      const auto middle = std::chrono::steady_clock::now();
      child.signal();
      side.share();
      if (turn == 0) continue;  // every page is there before anything is timed
      plain += middle - start;
      shared += std::chrono::steady_clock::now() - middle;
    }
    side.drop_cache();
    char row[200];
    std::snprintf(row, sizeof row, "%s{\"block_bytes\": %llu, \"ratio\": %.4f, \"gb_per_s\": %.3f}",
                  rows.empty() ? "" : ", ", static_cast<unsigned long long>(block_bytes),
                  plain.count() / shared.count(),
                  1e-9 * static_cast<double>(kTotalBytes) * kTurns / shared.count());
    rows += row;
  }
  std::printf("[%s]\n", rows.c_str());
}

}  // namespace
}  // namespace cairn

int main() {
  const auto pair = cairn::tcp_pair();
  const pid_t pid = ::fork();
  cairn::check(pid >= 0, "fork");
  if (pid == 0) {
    ::close(pair.parent);
    cairn::run_child(cairn::Channel(pair.child));
    return 0;
  }
  ::close(pair.child);
  cairn::run_parent(cairn::Channel(pair.parent));
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status == 0 ? 0 : 1;
}

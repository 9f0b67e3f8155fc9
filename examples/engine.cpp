// An engine that keeps its KV blocks in Cairn without copying them through HTTP. It maps a tier,
// reads stored blocks in place, computes the rest straight into slots of the tier and commits them.
// It "computes" a pattern that follows from the prompt, so that every byte can be checked.
//
// usage: cairn-example-engine SERVER CACHE FIRST_PROMPT PROMPTS BLOCKS
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/token.hpp"
#include "client/cache_client.hpp"
#include "examples/mapped_tier.hpp"

namespace example {
namespace {

using cairn::client::Allocation;
using cairn::client::BlockHandle;
using cairn::client::CacheClient;
using cairn::client::ClientError;
using cairn::client::CommitBlock;
using cairn::client::KeyList;
using cairn::client::StoreStatus;
using cairn::client::Tier;

constexpr std::uint64_t kLeaseMs = 30'000;
// Stops writing in place this long before the lease ends: then another client may get the slot.
constexpr std::int64_t kMarginMs = 5'000;
constexpr std::size_t kKeyBytes = 16;
constexpr Tier kTier = Tier::pinned;

template <class T>
T must(cairn::client::Answer<T> answer, const char* what) {
  if (answer) return std::move(*answer);
  throw std::runtime_error(std::string(what) + ": " + answer.error().code + ": " +
                           answer.error().detail);
}

std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

struct Block {
  std::uint64_t prompt = 0;
  std::uint64_t index = 0;
};

// The 64-bit words of a block in canonical order, [layer][outer][page][inner].
std::uint64_t word(Block block, std::uint64_t number) {
  return mix(mix((block.prompt << 20) + block.index) + number);
}

// Two big-endian numbers. A real engine hashes all tokens up to the end of the block.
std::vector<std::byte> keys_of(std::uint64_t prompt, std::uint64_t blocks) {
  std::vector<std::byte> keys;
  for (std::uint64_t index = 0; index < blocks; ++index) {
    for (const std::uint64_t number : {prompt, index}) {
      for (int shift = 56; shift >= 0; shift -= 8) {
        keys.push_back(static_cast<std::byte>(number >> shift));
      }
    }
  }
  return keys;
}

std::int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct Tally {
  std::uint64_t read_in_place = 0;
  std::uint64_t read_over_http = 0;
  std::uint64_t written = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t wrong_bytes = 0;
};

class Engine {
 public:
  Engine(CacheClient& client, std::string cache)
      : client_(client),
        cache_(std::move(cache)),
        layout_(must(client.get_cache(cache_), "cache").at("layout")),
        tier_(mapped()) {
    if (tier_->piece_bytes() % sizeof(std::uint64_t) != 0) {
      throw std::runtime_error("this engine's values come eight bytes at a time");
    }
  }

  void serve(std::uint64_t prompt, std::uint64_t blocks) {
    const std::vector<std::byte> bytes = keys_of(prompt, blocks);
    const KeyList keys(bytes, kKeyBytes);
    std::optional<std::uint64_t> held;
    while (!held) held = read_prefix(prompt, keys);
    if (*held < blocks) compute_rest(prompt, keys, *held);
  }
  const Tally& tally() const { return tally_; }

 private:
  std::unique_ptr<const MappedTier> mapped() const {
    return std::make_unique<const MappedTier>(must(client_.export_tier(cache_, kTier), "export"),
                                              layout_);
  }

  // Returns how many stored blocks of the prompt it read. nullopt if the lease ended meanwhile: the
  // bytes may then have changed.
  std::optional<std::uint64_t> read_prefix(std::uint64_t prompt, KeyList keys) {
    const auto match = must(client_.match(cache_, keys, kLeaseMs), "match");
    if (match.blocks.empty()) return 0;
    Tally read;
    for (std::uint64_t i = 0; i < match.blocks.size(); ++i) {
      if (match.blocks[i].tier == kTier) {
        read.wrong_bytes += wrong_in_place({prompt, i}, match.blocks[i].slot);
        ++read.read_in_place;
      } else {
        read.wrong_bytes += wrong_over_http({prompt, i}, keys[i]);
        ++read.read_over_http;
      }
    }
    if (!client_.end_lease(match.lease)) return std::nullopt;
    tally_.read_in_place += read.read_in_place;
    tally_.read_over_http += read.read_over_http;
    tally_.wrong_bytes += read.wrong_bytes;
    return match.blocks.size();
  }

  // An attention kernel would read the piece here.
  std::uint64_t wrong_in_place(Block block, std::uint64_t slot) {
    std::uint64_t wrong = 0;
    std::uint64_t number = 0;
    for_each_piece(slot, [&](std::span<std::byte> piece) {
      for (std::size_t at = 0; at < piece.size(); at += sizeof(std::uint64_t)) {
        wrong += wrong_of(piece.data() + at, word(block, number++));
      }
    });
    return wrong;
  }

  std::uint64_t wrong_over_http(Block block, std::span<const std::byte> key) const {
    std::vector<std::byte> bytes(tier_->layers() * tier_->outers() * tier_->piece_bytes());
    must(client_.get_key(cache_, key, bytes), "get");
    std::uint64_t wrong = 0;
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      wrong += wrong_of(bytes.data() + at, word(block, at / sizeof(std::uint64_t)));
    }
    return wrong;
  }

  static std::uint64_t wrong_of(const std::byte* bytes, std::uint64_t expected) {
    std::uint64_t found = 0;
    std::memcpy(&found, bytes, sizeof found);
    return found == expected ? 0 : sizeof found;
  }

  void compute_rest(std::uint64_t prompt, KeyList keys, std::uint64_t first) {
    Allocation slots =
        must(client_.allocate(cache_,
                              {.count = keys.size() - first, .tier = kTier, .lease_ms = kLeaseMs}),
             "allocate");
    std::vector<CommitBlock> commits;
    for (std::uint64_t i = first; i < keys.size(); ++i) {
      if (slots.expires_at_ms - unix_ms() < kMarginMs) {
        slots.expires_at_ms = must(client_.renew_lease(slots.lease, kLeaseMs), "renew");
      }
      const BlockHandle& handle = slots.blocks[i - first];
      compute_in_place({prompt, i}, handle.slot);
      const std::span<const std::byte> none;
      commits.push_back({.handle = handle, .key = keys[i], .parent = i > 0 ? keys[i - 1] : none});
    }
    for (const StoreStatus status : must(client_.commit(cache_, slots.lease, commits), "commit")) {
      ++(status == StoreStatus::committed ? tally_.written : tally_.duplicates);
    }
    // Committed blocks stay without the lease, so nothing is lost if it has ended.
    static_cast<void>(client_.end_lease(slots.lease));
  }

  void compute_in_place(Block block, std::uint64_t slot) {
    std::uint64_t number = 0;
    for_each_piece(slot, [&](std::span<std::byte> piece) {
      for (std::size_t at = 0; at < piece.size(); at += sizeof(std::uint64_t)) {
        const std::uint64_t value = word(block, number++);
        std::memcpy(piece.data() + at, &value, sizeof value);
      }
    });
  }

  // In canonical order, whatever the tier's layout.
  template <class Use>
  void for_each_piece(std::uint64_t slot, Use&& use) {
    if (slot >= tier_->slots()) tier_ = mapped();  // the tier has grown
    for (std::uint64_t layer = 0; layer < tier_->layers(); ++layer) {
      for (std::uint64_t outer = 0; outer < tier_->outers(); ++outer) {
        use(tier_->piece({.slot = slot, .layer = layer, .outer = outer}));
      }
    }
  }

  CacheClient& client_;
  const std::string cache_;
  const nlohmann::json layout_;
  std::unique_ptr<const MappedTier> tier_;
  Tally tally_;
};

int run(std::span<char* const> arguments) {
  if (arguments.size() != 6) {
    std::cerr << "usage: cairn-example-engine SERVER CACHE FIRST_PROMPT PROMPTS BLOCKS\n";
    return 2;
  }
  const auto endpoint = cairn::client::Endpoint::parse(arguments[1]);
  if (!endpoint) {
    std::cerr << "cairn-example-engine: " << endpoint.error().detail << "\n";
    return 2;
  }
  const char* const variable = std::getenv("CAIRN_TOKEN");
  auto token = cairn::bearer_token(variable == nullptr ? "" : variable, "CAIRN_TOKEN");
  if (!token) {
    std::cerr << "cairn-example-engine: " << token.error().detail << "\n";
    return 2;
  }
  CacheClient client(*endpoint, {.bearer_token = std::move(*token)});
  Engine engine(client, arguments[2]);
  const std::uint64_t first = std::stoull(arguments[3]);
  const std::uint64_t prompts = std::stoull(arguments[4]);
  for (std::uint64_t prompt = first; prompt < first + prompts; ++prompt) {
    engine.serve(prompt, std::stoull(arguments[5]));
  }
  const Tally& tally = engine.tally();
  std::cout << nlohmann::ordered_json{{"read_in_place", tally.read_in_place},
                                      {"read_over_http", tally.read_over_http},
                                      {"written", tally.written},
                                      {"duplicates", tally.duplicates},
                                      {"wrong_bytes", tally.wrong_bytes}}
            << "\n";
  return tally.wrong_bytes == 0 ? 0 : 1;
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // writing to a closed connection then returns an error
  try {
    return example::run({argv, static_cast<std::size_t>(argc)});
  } catch (const std::exception& failure) {
    std::cerr << "cairn-example-engine: " << failure.what() << "\n";
    return 1;
  }
}

#include "server/routes/peer_share.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <utility>

#include "base/hex.hpp"
#include "server/codec/document.hpp"
#include "server/routes/common.hpp"

namespace cairn::routes {
namespace {

// A result without its reason has 100 bytes. More is no response of a server.
constexpr std::size_t kMaxAnswerBytes = 16 * 1024;
// A block of 2 MiB is in the store after some milliseconds, and announced after some tens.
constexpr std::uint32_t kFirstAskMs = 100;
// The other server takes a key that it did not find for absent for half a second.
constexpr std::uint32_t kAskAgainMs = 550;

std::string prefetch_of(const std::vector<BlockKey>& keys) {
  std::string body = R"({"actions":[{"type":"prefetch","target":{"keys":[)";
  for (const BlockKey& key : keys) {
    if (&key != &keys.front()) body += ',';
    body += '"';
    append_hex(body, key.view().bytes());
    body += '"';
  }
  return body += "]}}]}";
}

class PeerSharing : public std::enable_shared_from_this<PeerSharing> {
 public:
  using Done = UniqueFunction<void(Result<std::uint64_t>)>;
  PeerSharing(Service& service, PeerShare share, Done done)
      : service_(service),
        share_(std::move(share)),
        until_(std::chrono::steady_clock::now() + std::chrono::milliseconds(share_.within_ms)),
        prefetch_(prefetch_of(share_.keys)),
        done_(std::move(done)) {}

  void ask_after(std::uint32_t delay_ms) {
    if (!service_.waits.after(delay_ms, [self = shared_from_this()] { self->ask(); })) {
      done_(Error{ErrorCode::queue_full, "too many requests wait; ask again later"});
    }
  }

 private:
  void ask() {
    service_.shared->ask_peer(
        {.server = share_.server,
         .target = cache_path(share_.cache) + "/actions",
         .body = prefetch_,
         .into = {{answer_.data(), answer_.size()}},
         .part_bytes = 1},
        [self = shared_from_this()](Result<std::size_t> bytes) { self->answered(bytes); });
  }

  void answered(const Result<std::size_t>& bytes) {
    if (!bytes) return done_(bytes.error());
    if (*bytes == 0) {
      return done_(
          Error{ErrorCode::unknown_cache, share_.server + " has no cache " + share_.cache});
    }
    const auto count = keys_in({answer_.data(), *bytes});
    if (!count) return done_(count.error());
    const bool is_more = *count > there_;
    there_ = *count;
    const auto delay = std::chrono::milliseconds(is_more ? kFirstAskMs : kAskAgainMs);
    if (there_ >= share_.keys.size() || std::chrono::steady_clock::now() + delay > until_) {
      return done_(there_);
    }
    ask_after(static_cast<std::uint32_t>(delay.count()));
  }

  // How many keys it has. The other server may be of any version, or none at all.
  Result<std::uint64_t> keys_in(std::string_view text) const {
    const auto document = parse_document(text);
    const Error wrong{ErrorCode::malformed, share_.server + " sent no results of actions"};
    if (!document || !document->is_object()) return wrong;
    const json result = document->value(json::json_pointer("/results/0"), json());
    if (!result.is_object()) return wrong;
    if (result.value("reason", json()) == json(to_string(ErrorCode::forbidden))) {
      return Error{ErrorCode::forbidden, share_.server + " refuses the prefetch"};
    }
    const json blocks = result.value("blocks", json());
    const json missing = result.value("missing", json());
    if (!blocks.is_number_unsigned() || !missing.is_number_unsigned()) return wrong;
    // A key may have blocks of several KV groups.
    const std::uint64_t asked = share_.keys.size();
    return std::min(blocks.get<std::uint64_t>(),
                    asked - std::min(missing.get<std::uint64_t>(), asked));
  }

  Service& service_;
  const PeerShare share_;
  const TimePoint until_;
  const std::string prefetch_;  // the request
  Done done_;
  std::array<char, kMaxAnswerBytes> answer_;
  std::uint64_t there_ = 0;
};

}  // namespace

void share_with_peer(Service& service, PeerShare share,
                     UniqueFunction<void(Result<std::uint64_t>)> done) {
  std::make_shared<PeerSharing>(service, std::move(share), std::move(done))->ask_after(kFirstAskMs);
}

}  // namespace cairn::routes

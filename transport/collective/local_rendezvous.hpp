#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/collective/communicator.hpp"
#include "transport/collective/link_socket.hpp"

namespace cairn {

// What proves that somebody was given the group's unique id.
using GroupSecret = std::array<std::byte, 16>;

struct LocalUniqueId {
  LinkAddress address;  // of rank 0; the host may be a name
  GroupSecret secret{};

  std::string text() const;  // "local:" and hex
};
Result<LocalUniqueId> parse_local_unique_id(std::string_view text);  // malformed

// How the ranks of a local group find each other: every rank above 0 shows rank 0 the secret, is
// given the addresses of all when the last one has come, and connects to the ranks between 0 and
// its own. Answers a connection a rank, this rank's own empty. See Collectives::join.
struct Rendezvous {
  RankPlace place;
  LocalUniqueId id;
  const LinkSocket* listener = nullptr;  // rank 0's
  std::chrono::steady_clock::time_point until;
  std::chrono::milliseconds timeout{};  // as errors name it
};
Result<std::vector<LinkSocket>> meet(const Rendezvous& rendezvous, const JoinStop& stop,
                                     UniqueFunction<void()> accepted);

}  // namespace cairn

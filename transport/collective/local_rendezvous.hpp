#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/collective/communicator.hpp"
#include "transport/collective/link_socket.hpp"

namespace cairn {

// Proves that a rank was given the group's unique id.
using GroupSecret = std::array<std::byte, 16>;

struct LocalUniqueId {
  LinkAddress address;  // of rank 0; the host may be a name
  GroupSecret secret{};

  std::string text() const;  // "local:" and hex
};
Result<LocalUniqueId> parse_local_unique_id(std::string_view text);  // malformed

// Connects all ranks of a local group. Every rank above 0 sends rank 0 the secret. When all have
// arrived, rank 0 sends the addresses, and each rank connects to the ranks between 0 and itself.
// Returns one connection per rank, empty at this rank. Errors: see Collectives::join.
struct Rendezvous {
  RankPlace place;
  LocalUniqueId id;
  const LinkSocket* listener = nullptr;  // rank 0's
  std::chrono::steady_clock::time_point until;
  std::chrono::milliseconds timeout{};  // only for error messages
};
Result<std::vector<LinkSocket>> meet(const Rendezvous& rendezvous, const JoinStop& stop,
                                     UniqueFunction<void()> accepted);

}  // namespace cairn

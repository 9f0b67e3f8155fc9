#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// The address of a server that has a cache's blocks. Its text in the shared store is
//   "1 URL CACHE", followed by " HOST PATH" if it has a Unix socket. HOST identifies the
//   machine since its last boot.
struct RemoteHolder {
  std::string url;
  std::string cache;
  std::string host = {};
  std::string unix_path = {};

  std::string text() const;
  // nullopt if malformed or too long, or if the URL is not a server's. Ignores an invalid socket
  // path.
  static std::optional<RemoteHolder> read(std::string_view text);
};

// One way to reach a holder.
struct BlockSource {
  std::string server;  // in the form that BlockPeers takes
  std::string cache;
  std::string who = {};  // the holder's text in the store; empty for an additional way to it
};
using BlockSources = std::vector<BlockSource>;

// How other servers reach this one.
struct RemoteAddress {
  std::string url = {};  // empty: they cannot
  std::string host = {};
  std::string unix_path = {};
  std::string instance = {};  // of this start of the server; empty: others are not detected
};

// Identifies this machine by a part of its boot_id, practically unique. Empty if unknown.
std::string this_host();

}  // namespace cairn

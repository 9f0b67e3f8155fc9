#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Where a server can be asked for the blocks of a cache, as it stands in a shared store:
//   "1 URL CACHE", and where it has a Unix socket " HOST PATH", HOST being the machine's own name
//   for itself since it was started.
struct SharedHolder {
  std::string url;
  std::string cache;
  std::string host = {};
  std::string unix_path = {};

  std::string text() const;
  // Nothing where it is none of this form, longer than any, or where its URL is none of a server. A
  // socket's path that can be none is left out.
  static std::optional<SharedHolder> read(std::string_view text);
};

// One way to a holder.
struct BlockSource {
  std::string server;  // as BlockPeers takes it
  std::string cache;
  std::string who = {};  // its text in the store; empty: not the way that the text names first
};
using BlockSources = std::vector<BlockSource>;

// How this server is reached by others.
struct SharedAddress {
  std::string url = {};  // empty: not at all
  std::string host = {};
  std::string unix_path = {};
  std::string instance = {};  // of this start of it; empty: nobody looks for others under its URL
};

// What hardly any but processes on this machine have in common (of its boot_id); empty where it is
// not told.
std::string this_host();

}  // namespace cairn

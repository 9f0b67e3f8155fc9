#include "blockmgr/remote_tier/remote_holder.hpp"

#include <array>
#include <fstream>

#include "blockmgr/index/cache_name.hpp"
#include "transport/store/peer_url.hpp"

namespace cairn {
namespace {

constexpr std::size_t kMaxTextBytes = 1'024;
constexpr std::string_view kForm = "1 ";

// The next word, up to a space or the end.
std::string_view take_word(std::string_view& text) {
  const auto space = text.find(' ');
  const std::string_view word = text.substr(0, space);
  text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  return word;
}

}  // namespace

std::string RemoteHolder::text() const {
  std::string text = std::string(kForm) + url + " " + cache;
  if (!unix_path.empty() && !host.empty()) text += " " + host + " " + unix_path;
  return text;
}

std::optional<RemoteHolder> RemoteHolder::read(std::string_view text) {
  if (!text.starts_with(kForm) || text.size() > kMaxTextBytes) return std::nullopt;
  text.remove_prefix(kForm.size());
  RemoteHolder holder;
  holder.url = take_word(text);
  holder.cache = take_word(text);
  const auto url = read_peer_url(holder.url);
  if (!url || url->address.host.empty() || !is_cache_name(holder.cache)) return std::nullopt;
  holder.host = take_word(text);
  if (is_socket_path(text)) holder.unix_path = text;
  return holder;
}

// The first eight of 36 characters: a text above 64 bytes costs Redis 1,000 bytes per block. If two
// machines collide, a server finds no such socket, or one without the block.
std::string this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id.substr(0, 8);
}

}  // namespace cairn

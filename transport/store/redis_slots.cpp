#include "transport/store/redis_slots.hpp"

#include <boost/crc.hpp>
#include <charconv>

namespace cairn {
namespace {

using Kind = RedisReply::Kind;

// "HOST:PORT"; the host may contain colons, or be empty.
std::optional<WireAddress> read_address(std::string_view text, const WireAddress& asked) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  WireAddress address{.host = std::string(text.substr(0, colon)), .port = 0};
  if (address.host.empty()) address.host = asked.host;
  if (!is_host(address.host)) return std::nullopt;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (error != std::errc() || stop != end || address.port == 0) return std::nullopt;
  return address;
}

std::optional<WireAddress> read_node(const RedisReply& host, const RedisReply& port,
                                     const WireAddress& asked) {
  WireAddress node{.host = host.text.empty() ? asked.host : host.text};
  if (!is_host(node.host) || port.kind != Kind::integer || port.integer < 1 ||
      port.integer > UINT16_MAX) {
    return std::nullopt;
  }
  node.port = static_cast<std::uint16_t>(port.integer);
  return node;
}

std::optional<RedisSlotRange> read_range(const RedisReply& range, const WireAddress& asked) {
  if (range.kind != Kind::list || range.list.size() < 3) return std::nullopt;
  const RedisReply& primary = range.list[2];
  const auto in_range = [](const RedisReply& slot) {
    return slot.kind == Kind::integer && slot.integer >= 0 && slot.integer < kRedisSlots;
  };
  if (!in_range(range.list[0]) || !in_range(range.list[1]) ||
      range.list[0].integer > range.list[1].integer || primary.kind != Kind::list ||
      primary.list.size() < 2) {
    return std::nullopt;
  }
  auto node = read_node(primary.list[0], primary.list[1], asked);
  if (!node) return std::nullopt;
  return RedisSlotRange{.first = static_cast<std::uint32_t>(range.list[0].integer),
                        .last = static_cast<std::uint32_t>(range.list[1].integer),
                        .node = std::move(*node)};
}

}  // namespace

std::uint32_t redis_slot_of(std::string_view name) {
  if (const auto open = name.find('{'); open != std::string_view::npos) {
    const auto close = name.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      name = name.substr(open + 1, close - open - 1);
    }
  }
  boost::crc_optimal<16, 0x1021, 0, 0, false, false> crc;
  crc.process_bytes(name.data(), name.size());
  return crc.checksum() % kRedisSlots;
}

std::optional<std::vector<RedisSlotRange>> read_slots(const RedisReply& reply,
                                                      const WireAddress& asked) {
  if (reply.kind != Kind::list || reply.list.empty()) return std::nullopt;
  std::vector<RedisSlotRange> ranges;
  std::uint32_t slots = 0;
  for (const RedisReply& range : reply.list) {
    auto read = read_range(range, asked);
    if (!read) return std::nullopt;
    slots += read->last - read->first + 1;
    if (slots > kRedisSlots) return std::nullopt;
    ranges.push_back(std::move(*read));
  }
  return ranges;
}

std::optional<std::vector<RedisSlotRange>> read_role(const RedisReply& reply,
                                                     const WireAddress& asked) {
  if (reply.kind != Kind::list || reply.list.size() < 3) return std::nullopt;
  const bool is_replica = reply.list[0].text == "slave";
  auto primary = is_replica ? read_node(reply.list[1], reply.list[2], asked) : std::optional(asked);
  if (!primary) return std::nullopt;
  return std::vector<RedisSlotRange>{
      {.first = 0, .last = kRedisSlots - 1, .node = std::move(*primary)}};
}

std::optional<RedisRedirect> read_redirect(std::string_view error, const WireAddress& asked) {
  RedisRedirect redirect{.is_ask = error.starts_with("ASK ")};
  if (!redirect.is_ask && !error.starts_with("MOVED ")) return std::nullopt;
  error.remove_prefix(error.find(' ') + 1);
  const char* const end = error.data() + error.size();
  const auto [stop, failure] = std::from_chars(error.data(), end, redirect.slot);
  if (failure != std::errc() || stop == end || *stop != ' ' || redirect.slot >= kRedisSlots) {
    return std::nullopt;
  }
  auto node = read_address({stop + 1, static_cast<std::size_t>(end - stop - 1)}, asked);
  if (!node) return std::nullopt;
  redirect.node = std::move(*node);
  return redirect;
}

}  // namespace cairn

#include "server/codec/query.hpp"

#include <algorithm>
#include <charconv>

#include "base/hex.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/codec/ids.hpp"

namespace cairn {
namespace {

constexpr std::size_t kMaxQuotedValue = 64;

std::string shown(std::string_view name, std::string_view value) {
  return std::string(name) + " is '" + std::string(value.substr(0, kMaxQuotedValue)) + "'";
}

}  // namespace

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    std::byte byte{};
    if (text.size() - i < 3 || !from_hex(text.substr(i + 1, 2), {&byte, 1})) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

Query::Query(std::string_view text) {
  while (!text.empty()) {
    const auto end = std::min(text.find('&'), text.size());
    if (end > 0) add(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::string_view Query::decode(std::string_view text) {
  if (text.find_first_of("%+") == std::string_view::npos) return text;
  std::string spaced(text);  // forms and most client libraries write a space as '+'
  std::ranges::replace(spaced, '+', ' ');
  auto decoded = percent_decoded(spaced);
  if (!decoded) {
    refuse(ErrorCode::malformed, "the query has a '%' without two hex digits: '" +
                                     std::string(text.substr(0, kMaxQuotedValue)) + "'");
    return {};
  }
  return decoded_.emplace_front(std::move(*decoded));
}

void Query::add(std::string_view pair) {
  if (count_ == kMaxParameters) {
    refuse(ErrorCode::malformed,
           "the query has more than " + std::to_string(kMaxParameters) + " parameters");
    return;
  }
  const auto equals = std::min(pair.find('='), pair.size());
  Parameter parameter{.name = decode(pair.substr(0, equals)),
                      .value = decode(pair.substr(std::min(equals + 1, pair.size())))};
  for (std::size_t i = 0; i < count_; ++i) {
    if (parameters_[i].name == parameter.name) {
      refuse(
          ErrorCode::malformed,
          "the query gives '" + std::string(parameter.name.substr(0, kMaxQuotedValue)) + "' twice");
    }
  }
  parameters_[count_++] = parameter;
}

std::optional<std::string_view> Query::text(std::string_view name) {
  for (std::size_t i = 0; i < count_; ++i) {
    if (parameters_[i].name != name) continue;
    parameters_[i].taken = true;
    return parameters_[i].value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> Query::number(std::string_view name, NumberBounds bounds) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
  const bool negative = value->size() > 1 && value->front() == '-' &&
                        value->find_first_not_of("0123456789", 1) == std::string_view::npos;
  const bool whole = end == value->data() + value->size() && !value->empty();
  if (!negative && (!whole || error == std::errc::invalid_argument)) {
    refuse(ErrorCode::wrong_type, shown(name, *value) + "; it takes an integer");
    return std::nullopt;
  }
  if (!negative && error == std::errc() && number >= bounds.min && number <= bounds.max) {
    return number;
  }
  refuse(ErrorCode::out_of_range, shown(name, *value) + "; it takes " + std::to_string(bounds.min) +
                                      " to " + std::to_string(bounds.max));
  return std::nullopt;
}

std::optional<bool> Query::flag(std::string_view name) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  if (*value == "true") return true;
  if (*value == "false") return false;
  refuse(ErrorCode::wrong_type, shown(name, *value) + "; it takes true or false");
  return std::nullopt;
}

std::optional<Tier> Query::tier(std::string_view name) {
  const auto index = word(name, kTierWords);
  if (!index) return std::nullopt;
  return kTiers[*index];
}

std::optional<std::size_t> Query::word(std::string_view name,
                                       std::span<const std::string_view> words) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const auto found = std::ranges::find(words, *value);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  std::string choice;
  for (std::string_view one : words) choice.append(choice.empty() ? "" : ", ").append(one);
  refuse(ErrorCode::out_of_range, shown(name, *value) + "; it takes one of " + choice);
  return std::nullopt;
}

std::optional<std::string> Query::object(std::string_view name) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const auto document = parse_document(*value);
  if (document && document->is_object()) return document->dump();
  refuse(ErrorCode::malformed, shown(name, *value) + "; it takes a JSON object");
  return std::nullopt;
}

std::optional<BlockKey> Query::key(std::string_view name) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  auto key = key_from(*value, name);
  if (key) return *key;
  refuse(key.error().code, key.error().detail);
  return std::nullopt;
}

std::uint32_t Query::limit() {
  // A person or a tool reads a page. The server writes it in well under a millisecond.
  return static_cast<std::uint32_t>(number("limit", {1, 1000}).value_or(100));
}

std::optional<PieceSelector> Query::piece() {
  const auto layer = number("layer", kAnyU32);
  const auto outer = number("outer", kAnyU32);
  if (layer.has_value() != outer.has_value()) {
    refuse(ErrorCode::missing_field,
           layer ? "outer is missing; it goes with layer" : "layer is missing; it goes with outer");
  }
  if (!layer || !outer) return std::nullopt;
  return PieceSelector{static_cast<std::uint32_t>(*layer), static_cast<std::uint32_t>(*outer)};
}

std::optional<ShardSelector> Query::shard() {
  const auto shard = number("shard", kAnyU32);
  const auto shards = number("shards", {1, UINT32_MAX});
  if (shard.has_value() != shards.has_value()) {
    refuse(ErrorCode::missing_field, shard ? "shards is missing; it goes with shard"
                                           : "shard is missing; it goes with shards");
  }
  if (!shard || !shards) return std::nullopt;
  return ShardSelector{static_cast<std::uint32_t>(*shard), static_cast<std::uint32_t>(*shards)};
}

BlockPart Query::part() {
  const auto of_layer = piece();
  const auto of_heads = shard();
  if (!of_heads) return of_layer;
  if (of_layer) {
    refuse(ErrorCode::malformed, "layer and shard are both given; a request takes one of them");
  }
  return *of_heads;
}

void Query::require(std::string_view name, bool given) {
  if (!given) refuse(ErrorCode::missing_field, std::string(name) + " is missing from the query");
}

Result<> Query::finish() {
  for (std::size_t i = 0; i < count_; ++i) {
    if (parameters_[i].taken) continue;
    errors_.add_unknown("the query's '" +
                        std::string(parameters_[i].name.substr(0, kMaxQuotedValue)) +
                        "' is no parameter of this route");
  }
  return errors_.take();
}

}  // namespace cairn

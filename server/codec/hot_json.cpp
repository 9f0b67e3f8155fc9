#include "server/codec/hot_json.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "server/codec/action_body.hpp"
#include "server/codec/ids.hpp"
#include "server/codec/json_reader.hpp"
#include "server/codec/reuse_hint_body.hpp"

namespace cairn::hot_json {
namespace {

// A parser keeps about as much memory as the largest body it has read. Each thread reuses one
// parser for usual bodies. A larger body gets its own parser.
constexpr std::size_t kMaxKeptBodyBytes = 1u << 20;

od::parser& parser_of_thread() {
  thread_local od::parser parser;
  return parser;
}

// Reads one whole body: `read` takes the Body and its root object.
template <class Read>
Result<> read_body(std::span<const std::byte> bytes, Read&& read) {
  // A parser may ignore a byte order mark (RFC 8259, 8.1), and parse_document() does.
  constexpr std::array kByteOrderMark = {std::byte{0xEF}, std::byte{0xBB}, std::byte{0xBF}};
  const bool marked = bytes.size() >= kByteOrderMark.size() &&
                      std::equal(kByteOrderMark.begin(), kByteOrderMark.end(), bytes.begin());
  const auto text = bytes.subspan(marked ? kByteOrderMark.size() : 0);
  const auto with = [&](od::parser& parser) -> Result<> {
    Body body(text, parser);
    auto root = body.root();
    if (!root) return std::move(root).error();
    CAIRN_TRY(read(body, *root));
    return body.finish();
  };
  if (bytes.size() <= kMaxKeptBodyBytes) return with(parser_of_thread());
  od::parser parser;
  return with(parser);
}

Error too_many(std::string_view list, std::size_t most) {
  return {ErrorCode::out_of_range, std::string(list) + " has more elements than the " +
                                       std::to_string(most) + " that it takes"};
}

template <class Number, class T>
Result<> store(Result<Number> number, T& out) {
  if (!number) return std::move(number).error();
  out = static_cast<T>(*number);
  return {};
}

Result<> read_tier(Body& body, od::value value, const Where& where, Tier& out) {
  auto word = body.string(value, where);
  if (!word) return std::move(word).error();
  const auto tier = tier_from(*word);
  if (!tier) {
    return Error{ErrorCode::out_of_range, where.text() + " is '" +
                                              std::string(word->substr(0, 64)) +
                                              "'; it takes one of device, pinned, disk"};
  }
  out = *tier;
  return {};
}

Result<> read_keys(Body& body, od::value value, const Where& where, std::size_t max_keys,
                   KeyBuffer& out) {
  auto list = body.list(value, where);
  if (!list) return std::move(list).error();
  Where element{.list = where.name};
  for (auto next : *list) {
    if (element.index == max_keys) return too_many(where.name, max_keys);
    od::value key;
    if (auto error = std::move(next).get(key)) return body.broken(error);
    auto text = body.string(key, element);
    if (!text) return std::move(text).error();
    CAIRN_TRY(out.add_hex(*text, where.name));
    ++element.index;
  }
  return {};
}

Result<> read_tokens(Body& body, od::value value, const Where& where, std::size_t max_tokens,
                     std::vector<std::uint32_t>& out) {
  auto list = body.list(value, where);
  if (!list) return std::move(list).error();
  Where element{.list = where.name};
  for (auto next : *list) {
    if (element.index == max_tokens) return too_many(where.name, max_tokens);
    od::value token;
    if (auto error = std::move(next).get(token)) return body.broken(error);
    CAIRN_TRY(store(body.number(token, element, kAnyU32), out.emplace_back()));
    ++element.index;
  }
  return {};
}

Result<> read_key(Body& body, od::value value, const Where& where, BlockKey& out) {
  auto text = body.string(value, where);
  if (!text) return std::move(text).error();
  auto key = key_from(*text, where.text());
  if (!key) return std::move(key).error();
  out = *key;
  return {};
}

Result<> read_optional_key(Body& body, od::value value, const Where& where,
                           std::optional<BlockKey>& out) {
  bool is_null = false;
  // Another token that begins like null is an error here.
  if (auto error = value.is_null().get(is_null)) return body.broken(error);
  if (is_null) return {};
  return read_key(body, value, where, out.emplace());
}

// `index` is the field's place in a handle: tier, slot, generation. They come first in each list of
// names.
Result<> read_handle_field(Body& body, std::size_t index, od::value value, const Where& where,
                           BlockHandle& out) {
  switch (index) {
    case 0:
      return read_tier(body, value, where, out.tier);
    case 1:
      return store(body.number(value, where, kAnyU32), out.slot);
    default:
      return store(body.number(value, where, {}), out.generation);
  }
}

Result<> read_flag(Body& body, od::value value, const Where& where, bool& out) {
  auto flag = body.flag(value, where);
  if (!flag) return std::move(flag).error();
  out = *flag;
  return {};
}

template <std::size_t N>
Result<> require(std::uint32_t seen, std::uint32_t required,
                 const std::array<std::string_view, N>& names, Where where) {
  for (std::size_t i = 0; i < N; ++i) {
    if (((required & ~seen) >> i) & 1U) {
      where.name = names[i];
      return missing_field(where);
    }
  }
  return {};
}

// Calls `read(object, where)` for each object of a list. More than `most` objects are out_of_range.
template <class Read>
Result<> each_object(Body& body, od::value value, const Where& where, std::size_t most,
                     Read&& read) {
  auto list = body.list(value, where);
  if (!list) return std::move(list).error();
  Where element{.list = where.name};
  for (auto next : *list) {
    if (element.index == most) return too_many(where.name, most);
    od::value item;
    if (auto error = std::move(next).get(item)) return body.broken(error);
    auto object = body.object(item, element);
    if (!object) return std::move(object).error();
    CAIRN_TRY(read(*object, element));
    ++element.index;
  }
  return {};
}

// Accepts and ignores `key`, so that clients can send a match's blocks unchanged.
Result<BlockHandle> read_handle(Body& body, od::object object, const Where& element,
                                const KvGroupNames& groups) {
  static constexpr std::array<std::string_view, 5> kNames = {"tier", "slot", "generation", "key",
                                                             "kv_group"};
  BlockHandle handle;
  bool names_group = false;
  auto seen =
      body.fields(object, kNames, element, [&](std::size_t index, od::value value) -> Result<> {
        Where where = element;
        where.name = kNames[index];
        if (index < 3) return read_handle_field(body, index, value, where, handle);
        auto text = body.string(value, where);
        if (!text) return std::move(text).error();
        if (index == 3) return {};
        names_group = true;
        return store(groups.number(*text), handle.kv_group);
      });
  if (!seen) return std::move(seen).error();
  CAIRN_TRY(require(*seen, 0b0111, kNames, element));
  if (!names_group) CAIRN_TRY(store(groups.unnamed(), handle.kv_group));
  return handle;
}

Result<> read_metadata(Body& body, od::value value, const Where& where, std::string& out) {
  auto object = body.object(value, where);
  if (!object) return std::move(object).error();
  std::string_view raw;
  if (auto error = object->raw_json().get(raw)) return body.broken(error);
  // The text is stored, so it must be valid. This parser has only skipped it.
  auto parsed = parse_document(raw);
  if (!parsed) {
    return Error{parsed.error().code, where.text() + ": " + std::move(parsed).error().detail};
  }
  out = parsed->dump();
  return {};
}

// The members of a hint, which come last in each list of names.
inline constexpr std::string_view kReuseName = "reuse";
inline constexpr std::string_view kSessionName = "session";
Result<> read_hint_field(Body& body, od::value value, const Where& where, RequestHint& out) {
  od::json_type type{};
  if (auto error = value.type().get(type)) return body.broken(error);
  std::string_view text;
  if (where.name == kReuseName && type == od::json_type::object) {
    auto object = body.object(value, where);
    if (!object) return std::move(object).error();
    if (auto error = object->raw_json().get(text)) return body.broken(error);
  } else {
    auto word = body.string(value, where);
    if (!word) return std::move(word).error();
    text = *word;
  }
  if (where.name == kSessionName) {
    CAIRN_TRY(check_session(text));
    out.session = text;
    return {};
  }
  auto reuse = read_reuse(text);
  if (!reuse) return std::move(reuse).error();
  out.reuse = *reuse;
  return {};
}

Result<> read_pin_time(Body& body, od::value value, const Where& where,
                       std::optional<std::uint32_t>& out) {
  auto object = body.object(value, where);
  if (!object) return std::move(object).error();
  std::string_view text;
  if (auto error = object->raw_json().get(text)) return body.broken(error);
  return store(read_cache_control(text), out.emplace());
}

Result<> read_if_exists(Body& body, od::value value, const Where& where, bool& refuse_duplicate) {
  auto word = body.string(value, where);
  if (!word) return std::move(word).error();
  const auto known = std::ranges::find(kIfExistsWords, *word);
  if (known == kIfExistsWords.end()) {
    return Error{ErrorCode::out_of_range, where.text() + " is '" +
                                              std::string(word->substr(0, 64)) +
                                              "'; it takes one of duplicate, error"};
  }
  refuse_duplicate = *word == "error";
  return {};
}

Result<CommitBlock> read_commit_block(Body& body, od::object object, const Where& element,
                                      const KvGroupNames& groups) {
  static constexpr std::array<std::string_view, 12> kNames = {
      "tier",   "slot",     "generation", "key",      "parent", "metadata",
      "ttl_ms", "priority", "if_exists",  "kv_group", "shard",  "shards"};
  constexpr std::uint32_t kShardSeen = 0b01 << 10;
  constexpr std::uint32_t kShardsSeen = 0b10 << 10;
  CommitBlock block;
  ShardSelector shard;
  std::optional<std::string_view> group;
  auto seen = body.fields(object, kNames, element, [&](std::size_t index, od::value value) {
    Where where = element;
    where.name = kNames[index];
    switch (index) {
      case 3:
        return read_key(body, value, where, block.key);
      case 4:
        return read_optional_key(body, value, where, block.parent);
      case 5:
        return read_metadata(body, value, where, block.metadata);
      case 6:
        return store(body.number(value, where, {.min = 1, .max = kMaxTtlMs}),
                     block.ttl_ms.emplace());
      case 7:
        return store(body.number(value, where, kPriorities), block.priority.emplace());
      case 8:
        return read_if_exists(body, value, where, block.refuse_duplicate);
      case 9: {
        auto name = body.string(value, where);
        if (!name) return Result<>(std::move(name).error());
        group = *name;
        return Result<>();
      }
      case 10:
        return store(body.number(value, where, kAnyU32), shard.shard);
      case 11:
        return store(body.number(value, where, {.min = 1, .max = UINT32_MAX}), shard.shards);
      default:
        return read_handle_field(body, index, value, where, block.handle);
    }
  });
  if (!seen) return std::move(seen).error();
  CAIRN_TRY(require(*seen, 0b1111, kNames, element));
  if ((*seen & (kShardSeen | kShardsSeen)) != 0) {
    CAIRN_TRY(require(*seen, kShardSeen | kShardsSeen, kNames, element));
    block.shard = shard;
  }
  if (groups.are_shown() || group) {
    CAIRN_TRY(store(groups.number_or_unnamed(group), block.handle.kv_group));
    block.key = in_group(block.key, block.handle.kv_group);
    if (block.parent) block.parent = in_group(*block.parent, block.handle.kv_group);
  }
  return block;
}

// A match takes keys or tokens, never both.
Result<> check_match_sources(bool has_keys, const MatchBody& body) {
  if (has_keys && body.has_tokens) {
    return Error{ErrorCode::malformed, "keys and tokens are both given; a match takes one of them"};
  }
  if (!has_keys && !body.has_tokens) {
    return Error{ErrorCode::missing_field, "keys (or tokens) is missing"};
  }
  if (body.salt && !body.has_tokens) {
    return Error{ErrorCode::malformed, "salt is given without tokens; it is part of their keys"};
  }
  if (body.onboard && body.lease_ms == 0U) {
    return Error{
        ErrorCode::out_of_range,
        "lease_ms is 0; with onboard it takes at least 1, because onboarded blocks are leased"};
  }
  return {};
}

// Refuses an empty list, because a missing list means all blocks.
Result<> check_release(const ReleaseBody& body, bool has_blocks) {
  if (!has_blocks || !body.blocks.empty()) return {};
  return Error{ErrorCode::out_of_range,
               "blocks has 0 elements; it takes at least 1 (leave it out to release all)"};
}

// Reads the number of blocks of each KV group, by its name.
Result<> read_counts(Body& body, od::value value, const Where& where, const KvGroupNames& groups,
                     AllocateBody& out) {
  auto object = body.object(value, where);
  if (!object) return std::move(object).error();
  out.group_counts.assign(1, 0);
  for (auto next : *object) {
    od::field field;
    if (auto error = std::move(next).get(field)) return body.broken(error);
    std::string_view name;
    if (auto error = field.unescaped_key().get(name)) return body.broken(error);
    const auto group = groups.number(name);
    if (!group) return group.error();
    if (out.group_counts.size() <= *group) out.group_counts.resize(*group + std::size_t{1});
    std::uint32_t& count = out.group_counts[*group];
    if (count > 0) {
      return Error{ErrorCode::malformed, "counts names " + std::string(name) + " twice"};
    }
    CAIRN_TRY(store(body.number(field.value(), {.name = name}, kAnyU32), count));
  }
  return {};
}

// Sets both forms of an allocation's size from the one that was given.
Result<> check_counts(bool has_count, const KvGroupNames& groups, AllocateBody& out) {
  if (has_count && !out.group_counts.empty()) {
    return Error{ErrorCode::malformed,
                 "count and counts are both given; an allocation takes one of them"};
  }
  if (has_count) {
    if (!groups.are_shown()) return {};
    const auto group = groups.unnamed();
    if (!group) return group.error();
    out.group_counts.assign(*group + std::size_t{1}, 0);
    out.group_counts[*group] = out.count;
    return {};
  }
  if (out.group_counts.empty()) {
    return Error{ErrorCode::missing_field, "count (or counts) is missing"};
  }
  const std::uint64_t sum =
      std::accumulate(out.group_counts.begin(), out.group_counts.end(), std::uint64_t{0});
  if (sum < 1 || sum > UINT32_MAX) {
    return Error{ErrorCode::out_of_range,
                 "counts has " + std::to_string(sum) + " blocks; it takes at least 1"};
  }
  out.count = static_cast<std::uint32_t>(sum);
  return {};
}

}  // namespace

Result<> read_match(std::span<const std::byte> bytes, const MatchLimits& limits, MatchBody& out) {
  static constexpr std::array<std::string_view, 11> kNames = {
      "keys",   "lease_ms", "tokens",   "salt",     "onboard",   "wait_ms",
      "shared", "have",     "kv_group", kReuseName, kSessionName};
  out.clear();
  return read_body(bytes, [&out, &limits](Body& body, od::object root) -> Result<> {
    auto seen = body.fields(root, kNames, {}, [&](std::size_t index, od::value value) {
      const Where where{.name = kNames[index]};
      switch (index) {
        case 0:
          return read_keys(body, value, where, limits.max_keys, out.keys);
        case 1:
          return store(body.number(value, where, kAnyU32), out.lease_ms.emplace());
        case 2:
          out.has_tokens = true;
          return read_tokens(body, value, where, limits.max_tokens, out.tokens);
        case 3: {
          auto salt = body.string(value, where);
          if (!salt) return Result<>(std::move(salt).error());
          out.salt.emplace(*salt);
          return Result<>();
        }
        case 4:
          return read_tier(body, value, where, out.onboard.emplace());
        case 5:
          return store(body.number(value, where, {0, kMaxWaitMs}), out.wait_ms);
        case 6:
          return read_flag(body, value, where, out.shared);
        case 7:
          return store(body.number(value, where, kAnyU32), out.have);
        case 8: {
          auto name = body.string(value, where);
          if (!name) return Result<>(std::move(name).error());
          out.kv_group.emplace(*name);
          return Result<>();
        }
        default:
          return read_hint_field(body, value, where, out.hint);
      }
    });
    if (!seen) return std::move(seen).error();
    return check_match_sources(*seen & 1U, out);
  });
}

Result<> read_contains(std::span<const std::byte> bytes, std::size_t max_keys, ContainsBody& out) {
  static constexpr std::array<std::string_view, 3> kNames = {"keys", "shared", "kv_group"};
  out.clear();
  return read_body(bytes, [&out, max_keys](Body& body, od::object root) -> Result<> {
    auto seen = body.fields(root, kNames, {}, [&](std::size_t index, od::value value) -> Result<> {
      const Where where{.name = kNames[index]};
      if (index == 0) return read_keys(body, value, where, max_keys, out.keys);
      if (index == 1) return read_flag(body, value, where, out.shared);
      auto name = body.string(value, where);
      if (!name) return std::move(name).error();
      out.kv_group.emplace(*name);
      return {};
    });
    if (!seen) return std::move(seen).error();
    return require(*seen, 0b1, kNames, {});
  });
}

Result<AllocateBody> read_allocate(std::span<const std::byte> bytes, const KvGroupNames& groups) {
  static constexpr std::array<std::string_view, 5> kNames = {"count", "tier", "lease_ms",
                                                             "priority", "counts"};
  AllocateBody out;
  auto read = read_body(bytes, [&](Body& body, od::object root) -> Result<> {
    auto seen = body.fields(root, kNames, {}, [&](std::size_t index, od::value value) {
      const Where where{.name = kNames[index]};
      switch (index) {
        case 0:
          return store(body.number(value, where, {1, UINT32_MAX}), out.count);
        case 1:
          return read_tier(body, value, where, out.tier.emplace());
        case 2:
          return store(body.number(value, where, kAnyU32), out.lease_ms.emplace());
        case 3:
          return store(body.number(value, where, kPriorities), out.priority);
        default:
          return read_counts(body, value, where, groups, out);
      }
    });
    if (!seen) return std::move(seen).error();
    return check_counts(*seen & 1U, groups, out);
  });
  if (!read) return std::move(read).error();
  return out;
}

Result<CommitBody> read_commit(std::span<const std::byte> bytes, const BlockBounds& bounds) {
  static constexpr std::array<std::string_view, 6> kNames = {
      "lease", "blocks", "release", "cache_control", kReuseName, kSessionName};
  CommitBody out;
  auto read = read_body(bytes, [&](Body& body, od::object root) -> Result<> {
    auto seen = body.fields(root, kNames, {}, [&](std::size_t index, od::value value) -> Result<> {
      const Where where{.name = kNames[index]};
      if (index == 1) {
        return each_object(body, value, where, bounds.max_blocks,
                           [&](od::object object, const Where& element) -> Result<> {
                             auto block = read_commit_block(body, object, element, bounds.groups);
                             if (!block) return std::move(block).error();
                             out.blocks.push_back(std::move(*block));
                             return {};
                           });
      }
      if (index == 2) return read_flag(body, value, where, out.release);
      if (index == 3) return read_pin_time(body, value, where, out.pin_ms);
      if (index > 3) return read_hint_field(body, value, where, out.hint);
      auto text = body.string(value, where);
      if (!text) return std::move(text).error();
      return read_lease(*text, out.lease);
    });
    if (!seen) return std::move(seen).error();
    return require(*seen, 0b11, kNames, {});
  });
  if (!read) return std::move(read).error();
  return out;
}

Result<ReleaseBody> read_release(std::span<const std::byte> bytes, const BlockBounds& bounds) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "blocks",        "to_lease", "input_tokens", "output_tokens",
      "cache_control", kReuseName, kSessionName};
  ReleaseBody out;
  if (bytes.empty()) return out;
  bool has_blocks = false;
  auto read = read_body(bytes, [&](Body& body, od::object root) -> Result<> {
    auto seen = body.fields(root, kNames, {}, [&](std::size_t index, od::value value) -> Result<> {
      const Where where{.name = kNames[index]};
      if (index == 1) {
        auto text = body.string(value, where);
        if (!text) return std::move(text).error();
        return read_lease(*text, out.to_lease.emplace(), kNames[index]);
      }
      if (index == 4) return read_pin_time(body, value, where, out.pin_ms);
      if (index > 4) return read_hint_field(body, value, where, out.hint);
      if (index >= 2) {
        auto& tokens = index == 2 ? out.input_tokens : out.output_tokens;
        return store(body.number(value, where, kAnyU32), tokens.emplace());
      }
      has_blocks = true;
      return each_object(body, value, where, bounds.max_blocks,
                         [&](od::object object, const Where& element) -> Result<> {
                           auto handle = read_handle(body, object, element, bounds.groups);
                           if (!handle) return std::move(handle).error();
                           out.blocks.push_back(*handle);
                           return {};
                         });
    });
    if (!seen) return std::move(seen).error();
    return {};
  });
  if (!read) return std::move(read).error();
  CAIRN_TRY(check_release(out, has_blocks));
  return out;
}

Result<RenewBody> read_renew(std::span<const std::byte> bytes) {
  static constexpr std::array<std::string_view, 1> kNames = {"lease_ms"};
  RenewBody out;
  if (bytes.empty()) return out;
  auto read = read_body(bytes, [&out](Body& body, od::object root) -> Result<> {
    auto seen = body.fields(root, kNames, {}, [&](std::size_t, od::value value) {
      return store(body.number(value, {.name = kNames[0]}, {1, UINT32_MAX}),
                   out.lease_ms.emplace());
    });
    if (!seen) return std::move(seen).error();
    return {};
  });
  if (!read) return std::move(read).error();
  return out;
}

}  // namespace cairn::hot_json

#include "server/auth/tokens.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <new>

#include "base/hex.hpp"
#include "blockmgr/index/cache_name.hpp"
#include "server/codec/document.hpp"
#include "server/codec/fields.hpp"
#include "server/codec/ids.hpp"

namespace cairn {
namespace {

constexpr std::array<std::string_view, 5> kRoleWords = {"metrics", "peer", "read", "write",
                                                        "admin"};
constexpr std::array<Role, 5> kRoles = {Role::metrics, Role::peer, Role::read, Role::write,
                                        Role::admin};
// Names are for logs.
constexpr std::size_t kMaxNameBytes = 64;

TokenDigest read_digest(Fields& fields) {
  TokenDigest digest{};
  const std::string hex = fields.string("sha256");
  if (!fields.errors().any() && !from_hex(hex, digest)) {
    fields.errors().add(ErrorCode::malformed,
                        fields.path_of("sha256") + " is not a SHA-256 hash of 64 hex digits");
  }
  return digest;
}

std::vector<std::string> read_caches(Fields& fields) {
  std::vector<std::string> caches;
  const json* list = fields.optional_list("caches");
  if (list == nullptr) return caches;
  const std::string path = fields.path_of("caches");
  // An empty list could be taken for "all", and would grant what it seems to refuse.
  if (list->empty()) {
    fields.errors().add(ErrorCode::out_of_range,
                        path + " is empty; without it the token may touch every cache");
  }
  for (const json& item : *list) {
    if (item.is_string() && is_cache_name(item.get_ref<const std::string&>())) {
      caches.push_back(item);
    } else {
      fields.errors().add(ErrorCode::malformed, path + ": " + std::string(kCacheNameRule));
    }
  }
  return caches;
}

Caller::Rights read_rights(Fields& fields, std::uint64_t max_leased_blocks) {
  Caller::Rights rights;
  rights.name = fields.string("name");
  if (!fields.errors().any() && (rights.name.empty() || rights.name.size() > kMaxNameBytes)) {
    fields.errors().add(ErrorCode::out_of_range,
                        fields.path_of("name") + " has " + std::to_string(rights.name.size()) +
                            " bytes; it takes 1 to " + std::to_string(kMaxNameBytes));
  }
  rights.role = kRoles[fields.word("role", kRoleWords)];
  rights.caches = read_caches(fields);
  if (const json* limits = fields.optional_object("max_blocks")) {
    Fields members(*limits, fields.path_of("max_blocks"), fields.errors());
    for (Tier tier : kTiers) {
      rights.max_blocks[index_of(tier)] = static_cast<std::uint32_t>(
          members.optional_number(to_string(tier), {0, BlockQuota::kNoLimit - 1})
              .value_or(BlockQuota::kNoLimit));
    }
    members.finish();
  }
  rights.max_leased_blocks =
      fields.optional_number("max_leased_blocks", {}).value_or(max_leased_blocks);
  rights.max_registered_bytes =
      fields.optional_number("max_registered_bytes", {}).value_or(rights.max_registered_bytes);
  rights.requests_per_s = static_cast<std::uint32_t>(
      fields.optional_number("requests_per_s", {1, 1'000'000}).value_or(0));
  return rights;
}

}  // namespace

TokenDigest digest_of(std::string_view token) {
  // Fetched once, because the lookup costs more than the hash.
  static EVP_MD* const algorithm = [] {
    EVP_MD* const fetched = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    if (fetched == nullptr) throw std::bad_alloc();
    return fetched;
  }();
  TokenDigest digest;
  // Allocates memory, and fails if there is none.
  if (EVP_Digest(token.data(), token.size(), reinterpret_cast<unsigned char*>(digest.data()),
                 nullptr, algorithm, nullptr) != 1) {
    throw std::bad_alloc();
  }
  return digest;
}

Result<std::string> token_hash(std::string_view token) {
  if (token.size() < kMinTokenBytes) {
    return Error{ErrorCode::out_of_range, "the token has " + std::to_string(token.size()) +
                                              " bytes; at least " + std::to_string(kMinTokenBytes) +
                                              " are needed"};
  }
  return to_hex(digest_of(token));
}

Result<TokenSet> TokenSet::parse(std::string_view json_text, const TokenSet& before,
                                 std::uint64_t max_leased_blocks) {
  auto document = parse_document(json_text);
  if (!document) return std::move(document).error();
  DecodeErrors errors;
  Fields fields(*document, "", errors);
  TokenSet set;
  if (const json* list = fields.list("tokens")) {
    for (const json& item : *list) {
      const std::string path = "tokens[" + std::to_string(set.entries_.size()) + "]";
      Fields members(item, path, errors);
      Entry entry{.digest = read_digest(members), .caller = nullptr};
      auto caller = std::make_shared<Caller>(read_rights(members, max_leased_blocks));
      members.finish();
      CAIRN_TRY(errors.take());
      if (const auto same = before.find(entry.digest)) caller->go_on_from(*same);
      entry.caller = std::move(caller);
      for (const Entry& other : set.entries_) {
        if (other.digest == entry.digest) {
          return Error{ErrorCode::malformed,
                       path + " repeats the token of '" + other.caller->name() + "'"};
        }
      }
      set.entries_.push_back(std::move(entry));
      if (set.entries_.size() > kMaxTokens) {
        return Error{ErrorCode::out_of_range,
                     "there are more than " + std::to_string(kMaxTokens) + " tokens"};
      }
    }
  }
  fields.finish();
  CAIRN_TRY(errors.take());
  return set;
}

Result<TokenSet> TokenSet::load(const std::string& path, const TokenSet& before,
                                std::uint64_t max_leased_blocks) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{ErrorCode::not_found, "the tokens file '" + path + "' cannot be read"};
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad())
    return Error{ErrorCode::io_error,
                 "the tokens file '" + path + "' could not be read to its end"};
  auto set = parse(text, before, max_leased_blocks);
  if (set) return set;
  return Error{set.error().code, "the tokens file '" + path + "': " + set.error().detail};
}

std::shared_ptr<const Caller> TokenSet::find(std::string_view token) const {
  return find(digest_of(token));
}

std::shared_ptr<const Caller> TokenSet::find(const TokenDigest& digest) const {
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  return found == nullptr ? nullptr : found->caller;
}

std::shared_ptr<const Caller> TokenSet::find(const Caller& caller) const {
  const auto found = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.caller->has_same_token(caller); });
  return found == entries_.end() ? nullptr : found->caller;
}

}  // namespace cairn

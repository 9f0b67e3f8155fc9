#include "server/auth/gate.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <optional>

namespace cairn {
namespace {

// For a token, or for Basic credentials from a browser.
constexpr std::size_t kMaxCredentialBytes = 512;

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return (x | 0x20) == (y | 0x20);  // the words compared have only letters
  });
}

// Returns the password of Basic credentials (RFC 7617).
std::optional<std::string> password_of(std::string_view base64) {
  if (base64.empty() || base64.size() % 4 != 0) return std::nullopt;
  // EVP_DecodeBlock takes '=' for zeros anywhere, but only the last group may be padded.
  const std::size_t characters = std::min(base64.find('='), base64.size());
  const std::size_t padding = base64.size() - characters;
  if (padding > 2 || base64.substr(characters).find_first_not_of('=') != std::string_view::npos) {
    return std::nullopt;
  }
  std::string decoded(base64.size() / 4 * 3, '\0');
  const int bytes = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(decoded.data()),
                                    reinterpret_cast<const unsigned char*>(base64.data()),
                                    static_cast<int>(base64.size()));
  // It trims white space at both ends, and so may return less.
  if (bytes < 0 || static_cast<std::size_t>(bytes) != decoded.size()) return std::nullopt;
  decoded.resize(decoded.size() - padding);
  const std::size_t colon = decoded.find(':');
  if (colon == std::string::npos) return std::nullopt;
  return decoded.substr(colon + 1);
}

Error wrong_field() {
  return {ErrorCode::unauthorized, "the Authorization field is not 'Bearer TOKEN'"};
}

struct Credentials {
  std::string token;
  bool is_basic = false;
};

Result<Credentials> credentials_of(const http::RequestHead& head) {
  const std::string_view field = head.authorization;
  if (field.empty()) return Error{ErrorCode::unauthorized, "this requires a bearer token"};
  const Error wrong = wrong_field();
  if (field.size() > kMaxCredentialBytes) return wrong;
  const std::size_t space = field.find(' ');
  if (space == std::string_view::npos) return wrong;
  const std::string_view scheme = field.substr(0, space);
  const std::string_view value =
      field.substr(std::min(field.find_first_not_of(' ', space), field.size()));
  if (same_word(scheme, "bearer")) return Credentials{std::string(value)};
  if (!same_word(scheme, "basic")) return wrong;
  auto password = password_of(value);
  if (!password) return wrong;
  return Credentials{std::move(*password), true};
}

}  // namespace

Gate::Gate(std::string path, const Clock& clock, std::uint64_t max_leased_blocks, TokenSet tokens)
    : path_(std::move(path)),
      clock_(clock),
      max_leased_blocks_(max_leased_blocks),
      tokens_(std::make_shared<const TokenSet>(std::move(tokens))) {}

Result<std::unique_ptr<Gate>> Gate::open(std::string tokens_path, const Clock& clock,
                                         std::uint64_t max_leased_blocks) {
  auto tokens = TokenSet::load(tokens_path, TokenSet(), max_leased_blocks);
  if (!tokens) return std::move(tokens).error();
  return std::unique_ptr<Gate>(
      new Gate(std::move(tokens_path), clock, max_leased_blocks, std::move(*tokens)));
}

Result<std::shared_ptr<const Caller>> Gate::admit(const http::RequestHead& head) const {
  auto credentials = credentials_of(head);
  if (!credentials) return std::move(credentials).error();
  // A browser adds known credentials to every request, whichever page makes it. So Basic may only
  // read, never change anything.
  const bool only_looks = head.method == http::Method::get || head.method == http::Method::head;
  if (credentials->is_basic && !only_looks) return wrong_field();
  auto caller = tokens()->find(credentials->token);
  if (caller == nullptr) return Error{ErrorCode::unauthorized, "the token is unknown"};
  if (!caller->take_request(clock_.now())) {
    return Error{ErrorCode::too_many,
                 "the token '" + caller->name() + "' has used up its requests"};
  }
  return caller;
}

std::shared_ptr<const Caller> Gate::presented(const http::RequestHead& head) const {
  auto credentials = credentials_of(head);
  return credentials ? tokens()->find(credentials->token) : nullptr;
}

std::shared_ptr<const TokenSet> Gate::tokens() const {
  MutexLock lock(mutex_);
  return tokens_;
}

std::shared_ptr<const Caller> Gate::now(const Caller& caller) const {
  return tokens()->find(caller);
}

Result<std::size_t> Gate::reload() {
  const std::shared_ptr<const TokenSet> before = tokens();
  auto tokens = TokenSet::load(path_, *before, max_leased_blocks_);
  if (!tokens) return std::move(tokens).error();
  const std::size_t size = tokens->size();
  auto fresh = std::make_shared<const TokenSet>(std::move(*tokens));
  MutexLock lock(mutex_);
  tokens_.swap(fresh);
  ++generation_;
  return size;
}

}  // namespace cairn

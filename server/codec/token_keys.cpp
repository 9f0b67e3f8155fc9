#include "server/codec/token_keys.hpp"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <memory>
#include <new>

#include "base/assert.hpp"

namespace cairn {
namespace {

// The tokens are hashed as they lie in memory.
static_assert(std::endian::native == std::endian::little, "tokens would be hashed byte-swapped");

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()), algorithm_(EVP_MD_fetch(nullptr, "SHA256", nullptr)) {
    if (!context_ || !algorithm_) throw std::bad_alloc();
  }

  void start() { check(EVP_DigestInit_ex2(context_.get(), algorithm_.get(), nullptr)); }
  void add(std::span<const std::byte> bytes) {
    check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
  }
  void finish(Digest& out) {
    unsigned written = 0;
    check(
        EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(out.data()), &written));
  }

 private:
  // With valid arguments these fail only when out of memory.
  static void check(int ok) {
    if (ok != 1) throw std::bad_alloc();
  }

  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
    void operator()(EVP_MD* algorithm) const { EVP_MD_free(algorithm); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
  std::unique_ptr<EVP_MD, Free> algorithm_;
};

}  // namespace

void add_token_keys(const TokenRun& run, KeyBuffer& out) {
  CAIRN_ASSERT(run.page_size > 0, "an empty page has no key");
  // Reused, because fetching an algorithm takes locks and longer than hashing a page.
  thread_local Sha256 sha;
  Digest digest{};
  std::span<const std::byte> parent;
  if (run.salt) {
    sha.start();
    sha.add(std::as_bytes(std::span(*run.salt)));
    sha.finish(digest);
    parent = digest;
  }
  auto rest = run.tokens;
  while (rest.size() >= run.page_size) {
    sha.start();
    sha.add(parent);
    sha.add(std::as_bytes(rest.first(run.page_size)));
    sha.finish(digest);
    out.add(digest);
    parent = digest;
    rest = rest.subspan(run.page_size);
  }
}

}  // namespace cairn

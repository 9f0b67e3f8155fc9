#include "base/random.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.hpp"

namespace cairn {

void RandomBytes::fill(std::span<std::byte> out) {
  while (!out.empty()) {
    if (used_ == pool_.size()) {
      // getrandom may return fewer bytes than requested above 256.
      for (std::size_t got = 0; got < pool_.size();) {
        const ssize_t n = ::getrandom(pool_.data() + got, pool_.size() - got, 0);
        CAIRN_ASSERT(n > 0 || errno == EINTR, "no random bytes: ids could be guessed");
        if (n > 0) got += static_cast<std::size_t>(n);
      }
      used_ = 0;
    }
    const std::size_t n = std::min(out.size(), pool_.size() - used_);
    std::memcpy(out.data(), pool_.data() + used_, n);
    used_ += n;
    out = out.subspan(n);
  }
}

std::uint64_t RandomBytes::next_u64() {
  std::uint64_t value = 0;
  fill(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace cairn

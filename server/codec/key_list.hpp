#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/types.hpp"

namespace cairn {

// Keys end to end in one buffer that is kept from request to request, so that reading a list of
// them allocates nothing in the long run.
class KeyBuffer {
 public:
  void clear();
  // malformed, naming `field` and the position, where the text is no key.
  Result<> add_hex(std::string_view text, std::string_view field);
  void add(std::span<const std::byte> key);  // REQUIRES: 1 to kMaxKeyBytes bytes
  std::size_t size() const { return lengths_.size(); }
  // Valid until the next clear() or add.
  std::span<const KeyView> views();

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::uint8_t> lengths_;
  std::vector<KeyView> views_;
};

}  // namespace cairn

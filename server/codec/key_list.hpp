#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

// The most memory that a reused list keeps: enough for usual prompts of a few thousand keys or a
// hundred thousand tokens. Otherwise one huge request would leave its memory on every thread.
inline constexpr std::size_t kMaxKeptBytes = 1u << 20;

// Empties a list, and frees its memory above kMaxKeptBytes.
template <class T>
void clear_kept(std::vector<T>& list) {
  list.clear();
  if (list.capacity() * sizeof(T) > kMaxKeptBytes) std::vector<T>().swap(list);
}

// Keys in one contiguous buffer. It is reused between requests, so that reading keys rarely
// allocates.
class KeyBuffer {
 public:
  // Frees the memory of a list above kMaxKeptBytes.
  void clear();
  // Error: malformed, naming `field` and the position, if the text is not a key.
  Result<> add_hex(std::string_view text, std::string_view field);
  void add(std::span<const std::byte> key);  // REQUIRES: 1 to kMaxKeyBytes bytes
  // Replaces the content by contiguous keys of `key_bytes` each, without copying. REQUIRES: the
  // memory stays valid until the next clear(), and holds whole keys.
  void borrow(std::span<const std::byte> keys, std::size_t key_bytes);
  std::size_t size() const { return is_borrowed_ ? views_.size() : lengths_.size(); }
  std::size_t capacity_bytes() const;
  // Valid until the next clear() or add.
  std::span<const KeyView> views();

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::uint8_t> lengths_;
  std::vector<KeyView> views_;
  bool is_borrowed_ = false;  // the views point into the caller's memory
};

}  // namespace cairn

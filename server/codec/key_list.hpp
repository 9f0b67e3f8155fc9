#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

// Of a list that is kept from request to request: what a prompt of every day takes, which is a few
// thousand keys or a hundred thousand tokens. One huge request must not leave its memory behind on
// every thread.
inline constexpr std::size_t kMaxKeptBytes = 1u << 20;

// Empties a list.
template <class T>
void clear_kept(std::vector<T>& list) {
  list.clear();
  if (list.capacity() * sizeof(T) > kMaxKeptBytes) std::vector<T>().swap(list);
}

// Keys end to end in one buffer that is kept from request to request, so that reading a list of
// them allocates nothing in the long run.
class KeyBuffer {
 public:
  // Memory above kMaxKeptBytes a list goes back.
  void clear();
  // malformed, naming `field` and the position, where the text is no key.
  Result<> add_hex(std::string_view text, std::string_view field);
  void add(std::span<const std::byte> key);  // REQUIRES: 1 to kMaxKeyBytes bytes
  // These and no others, end to end and each so long, where they lie. REQUIRES: they stay until the
  // next clear(), and end with a key.
  void borrow(std::span<const std::byte> keys, std::size_t key_bytes);
  std::size_t size() const { return is_borrowed_ ? views_.size() : lengths_.size(); }
  std::size_t capacity_bytes() const;
  // Valid until the next clear() or add.
  std::span<const KeyView> views();

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::uint8_t> lengths_;
  std::vector<KeyView> views_;
  bool is_borrowed_ = false;  // the views are of memory that is not this one's
};

}  // namespace cairn

#include "server/codec/key_list.hpp"

#include <string>

#include "base/hex.hpp"
#include "server/codec/ids.hpp"

namespace cairn {

void KeyBuffer::clear() {
  clear_kept(bytes_);
  clear_kept(lengths_);
  clear_kept(views_);
  is_borrowed_ = false;
}

std::size_t KeyBuffer::capacity_bytes() const {
  return bytes_.capacity() + lengths_.capacity() + views_.capacity() * sizeof(KeyView);
}

Result<> KeyBuffer::add_hex(std::string_view text, std::string_view field) {
  const std::size_t length = text.size() / 2;
  const std::size_t at = bytes_.size();
  if (length >= 1 && length <= kMaxKeyBytes) {
    bytes_.resize(at + length);
    if (from_hex(text, std::span(bytes_).subspan(at))) {
      lengths_.push_back(static_cast<std::uint8_t>(length));
      return {};
    }
    bytes_.resize(at);
  }
  const std::string where = std::string(field) + "[" + std::to_string(lengths_.size()) + "]";
  return key_from(text, where).error();  // key_from() writes the error
}

void KeyBuffer::add(std::span<const std::byte> key) {
  bytes_.insert(bytes_.end(), key.begin(), key.end());
  lengths_.push_back(static_cast<std::uint8_t>(key.size()));
}

void KeyBuffer::borrow(std::span<const std::byte> keys, std::size_t key_bytes) {
  clear();
  is_borrowed_ = true;
  const auto size = static_cast<std::uint8_t>(key_bytes);
  views_.resize(keys.size() / key_bytes);
  const std::byte* at = keys.data();
  for (KeyView& view : views_) {
    view = {at, size};
    at += size;
  }
}

std::span<const KeyView> KeyBuffer::views() {
  if (is_borrowed_) return views_;
  views_.clear();
  views_.reserve(lengths_.size());
  const std::byte* at = bytes_.data();
  for (std::uint8_t length : lengths_) {
    views_.push_back({at, length});
    at += length;
  }
  return views_;
}

}  // namespace cairn

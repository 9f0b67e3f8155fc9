#include "blockmgr/disk/pins_file.hpp"

#include <cstring>
#include <string_view>
#include <utility>

namespace cairn {
namespace {

constexpr SideFileKind kPins{.name = "pins", .magic = {'C', 'A', 'I', 'R', 'N', 'P', 'I', 'N'}};

struct PinHead {
  PinId id{};
  std::int64_t expires_at_unix_ms = 0;
  std::uint32_t ttl_ms = 0;
  std::uint32_t num_keys = 0;
  std::uint32_t holder_bytes = 0;
  std::uint32_t session_bytes = 0;
  std::uint8_t has_holder = 0;
  std::uint8_t refresh_on_hit = 0;
  std::array<std::uint8_t, 6> unused{};
};
static_assert(sizeof(PinHead) == 48);

struct PinnedKeyHead {
  std::uint8_t bytes = 0;
  std::uint8_t kv_group = 0;
};

template <class T>
void append_pin_value(std::vector<std::byte>& out, const T& value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof(value));
  std::memcpy(out.data() + at, &value, sizeof(value));
}

void append_pin_text(std::vector<std::byte>& out, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Takes values from the front. The checksum has been compared, so an end that comes too early means
// another writer; it fails all the same.
class PinsReader {
 public:
  explicit PinsReader(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T>
  bool take(T& out) {
    if (left_.size() < sizeof(out)) return false;
    std::memcpy(&out, left_.data(), sizeof(out));
    left_ = left_.subspan(sizeof(out));
    return true;
  }
  bool take_text(std::size_t size, std::string& out) {
    if (left_.size() < size) return false;
    out.assign(reinterpret_cast<const char*>(left_.data()), size);
    left_ = left_.subspan(size);
    return true;
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

bool take_pin(PinsReader& reader, PinRecord& out) {
  PinHead head;
  std::string holder;
  if (!reader.take(head) || !reader.take_text(head.holder_bytes, holder) ||
      !reader.take_text(head.session_bytes, out.session)) {
    return false;
  }
  out.id = head.id;
  out.expires_at_unix_ms = head.expires_at_unix_ms;
  out.ttl_ms = head.ttl_ms;
  out.refresh_on_hit = head.refresh_on_hit != 0;
  if (head.has_holder != 0) out.holder = std::move(holder);
  for (std::uint32_t i = 0; i < head.num_keys; ++i) {
    PinnedKeyHead key_head;
    PinRecord::Key key;
    if (!reader.take(key_head) || !reader.take_text(key_head.bytes, key.bytes)) return false;
    key.kv_group = key_head.kv_group;
    out.keys.push_back(std::move(key));
  }
  return true;
}

}  // namespace

Result<> write_pins(const SideFile& file, std::span<const PinRecord> pins) {
  std::vector<std::byte> bytes;
  for (const PinRecord& pin : pins) {
    append_pin_value(
        bytes, PinHead{.id = pin.id,
                       .expires_at_unix_ms = pin.expires_at_unix_ms,
                       .ttl_ms = pin.ttl_ms,
                       .num_keys = static_cast<std::uint32_t>(pin.keys.size()),
                       .holder_bytes =
                           static_cast<std::uint32_t>(pin.holder.value_or(std::string()).size()),
                       .session_bytes = static_cast<std::uint32_t>(pin.session.size()),
                       .has_holder = static_cast<std::uint8_t>(pin.holder ? 1 : 0),
                       .refresh_on_hit = static_cast<std::uint8_t>(pin.refresh_on_hit)});
    append_pin_text(bytes, pin.holder.value_or(std::string()));
    append_pin_text(bytes, pin.session);
    for (const PinRecord::Key& key : pin.keys) {
      append_pin_value(bytes, PinnedKeyHead{.bytes = static_cast<std::uint8_t>(key.bytes.size()),
                                            .kv_group = key.kv_group});
      append_pin_text(bytes, key.bytes);
    }
  }
  return write_side_file(file, kPins, bytes);
}

Result<std::vector<PinRecord>> read_pins(const SideFile& file) {
  auto bytes = read_side_file(file, kPins);
  if (!bytes) return std::move(bytes).error();
  PinsReader reader(*bytes);
  std::vector<PinRecord> pins;
  while (!reader.at_end()) {
    if (!take_pin(reader, pins.emplace_back())) return damaged_side_file(file, kPins);
  }
  return pins;
}

void remove_pins(const std::filesystem::path& slot_file) { remove_side_file(slot_file, kPins); }

}  // namespace cairn

#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "transport/collective/communicator.hpp"

namespace cairn {

// Numbers of one type, as ranks exchange them.
class Numbers {
 public:
  explicit Numbers(DataType type = DataType::int64) : type_(type) {}

  DataType type() const { return type_; }
  std::size_t count() const { return bytes_.size() / width_bytes(type_); }
  std::byte* data() { return bytes_.data(); }
  std::uint64_t size_bytes() const { return bytes_.size(); }

  // Rounds to nearest if the type is a floating-point one. REQUIRES: an integer fits the type.
  void add(std::int64_t value);
  void add(double value);  // REQUIRES: a floating-point type
  using Value = std::variant<std::int64_t, std::uint64_t, double>;
  Value at(std::size_t index) const;

  friend bool operator==(const Numbers&, const Numbers&) = default;

 private:
  DataType type_;
  std::vector<std::byte> bytes_;
};

bool is_integer(DataType type);
// The integers of a type, as far as they fit std::int64_t. REQUIRES: is_integer(type).
struct IntegerBounds {
  std::int64_t min = 0;
  std::int64_t max = 0;
};
IntegerBounds bounds_of(DataType type);

}  // namespace cairn

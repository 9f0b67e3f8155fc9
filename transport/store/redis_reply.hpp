#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairn {

// A reply of Redis.
struct RedisReply {
  enum class Kind : std::uint8_t { nothing, text, integer, error, list } kind = Kind::nothing;
  std::int64_t integer = 0;
  std::string text = {};  // for text and error
  std::vector<RedisReply> list = {};

  bool is_error() const { return kind == Kind::error; }
};

}  // namespace cairn

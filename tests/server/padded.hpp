#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.hpp"

namespace cairn::fakes {

// A body as the HTTP machinery hands it over: followed by kBodyPadding bytes that mean nothing.
class PaddedBody {
 public:
  explicit PaddedBody(std::string_view text) : size_(text.size()) {
    memory_.assign(text.size() + http::kBodyPadding, std::byte{'"'});
    const auto bytes = std::as_bytes(std::span(text));
    std::copy(bytes.begin(), bytes.end(), memory_.begin());
  }
  std::span<const std::byte> bytes() const { return {memory_.data(), size_}; }

 private:
  std::vector<std::byte> memory_;
  std::size_t size_;
};

}  // namespace cairn::fakes

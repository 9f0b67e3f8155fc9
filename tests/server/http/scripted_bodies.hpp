#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/http/message.hpp"

namespace cairn::http::testing {

// An Upload that does what a test says; `alive` expires with it.
class ScriptedUpload final : public Upload {
 public:
  using Next = std::function<void(UniqueFunction<void(Room)>)>;
  using Finish = std::function<void(Responder)>;
  ScriptedUpload(std::shared_ptr<int> alive, Next next, Finish finish)
      : alive_(std::move(alive)), next_(std::move(next)), finish_(std::move(finish)) {}
  void next(UniqueFunction<void(Room)> ready) override { next_(std::move(ready)); }
  void finish(Responder respond) override { finish_(std::move(respond)); }

 private:
  std::shared_ptr<int> alive_;
  Next next_;
  Finish finish_;
};

// A Download that does what a test says; `alive` expires with it.
class ScriptedDownload final : public Download {
 public:
  using Next = std::function<void(UniqueFunction<void(Pieces)>)>;
  ScriptedDownload(std::shared_ptr<int> alive, Next next)
      : alive_(std::move(alive)), next_(std::move(next)) {}
  void next(UniqueFunction<void(Pieces)> ready) override { next_(std::move(ready)); }

 private:
  std::shared_ptr<int> alive_;
  Next next_;
};

// Memory of several pieces.
class Scattered {
 public:
  explicit Scattered(const std::vector<std::size_t>& piece_bytes, char fill = 0) {
    for (std::size_t bytes : piece_bytes) memory_.emplace_back(bytes, fill);
    for (std::string& piece : memory_) iov_.push_back({piece.data(), piece.size()});
  }
  std::span<const iovec> pieces() const { return iov_; }
  std::string text() const {
    std::string all;
    for (const std::string& piece : memory_) all += piece;
    return all;
  }

 private:
  std::vector<std::string> memory_;
  std::vector<iovec> iov_;
};

// Has no short period, so that a misplaced byte shows.
inline std::string pattern(std::size_t bytes) {
  std::string text(bytes, 0);
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i * 31 + i / 251) % 253);
  return text;
}

}  // namespace cairn::http::testing

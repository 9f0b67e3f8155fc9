#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/passed_files.hpp"

namespace cairn::http {

// Counts the open files that clients passed and the server still holds. Anyone who may connect to
// the Unix socket can pass files before authentication, and a process can have only a limited
// number. Thread-safe.
class PassedFileCount {
 public:
  explicit PassedFileCount(std::uint32_t most) : most_(most) {}

  // True if there is room for the files of one message. Concurrent callers may each exceed the
  // limit by one message.
  bool has_room() const {
    return open_->load(std::memory_order_relaxed) + kMaxPassedFiles <= most_;
  }
  // Wraps the file so that it counts until its last reference is gone. May outlive this object.
  PassedFiles::value_type counted(PassedFiles::value_type file) const {
    const FileDescriptor* const raw = file.get();
    open_->fetch_add(1, std::memory_order_relaxed);
    return {raw, [file = std::move(file), open = open_](const FileDescriptor*) mutable {
              file.reset();
              open->fetch_sub(1, std::memory_order_relaxed);
            }};
  }

 private:
  const std::uint32_t most_;
  const std::shared_ptr<std::atomic<std::uint32_t>> open_ =
      std::make_shared<std::atomic<std::uint32_t>>(0);
};

}  // namespace cairn::http

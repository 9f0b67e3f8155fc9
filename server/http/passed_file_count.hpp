#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/passed_files.hpp"

namespace cairn::http {

// The open files that clients have passed and that anybody here still holds: who may connect to the
// Unix socket passes some before a token is asked for, and the process may have only so many.
// Thread-safe.
class PassedFileCount {
 public:
  explicit PassedFileCount(std::uint32_t most) : most_(most) {}

  // For those of one message. Threads that ask at once may go over by a message each.
  bool has_room() const {
    return open_->load(std::memory_order_relaxed) + kMaxPassedFiles <= most_;
  }
  // The same file, counted until nobody has it. May outlive this object.
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

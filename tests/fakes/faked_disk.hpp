#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "transport/io/disk_io.hpp"

namespace cairn::fakes {

// Wraps a rig's disk in a fake, which borrows the real one. Must outlive the rig.
template <class Fake>
class FakedDisk {
 public:
  FakedDisk() = default;
  FakedDisk(const FakedDisk&) = delete;
  FakedDisk& operator=(const FakedDisk&) = delete;

  // The rig calls it once.
  std::function<std::unique_ptr<DiskIo>(std::unique_ptr<DiskIo>)> wrap() {
    return [this](std::unique_ptr<DiskIo> disk) {
      real_ = std::move(disk);
      auto wrapped = std::make_unique<Fake>(*real_);
      fake_ = wrapped.get();
      return std::unique_ptr<DiskIo>(std::move(wrapped));
    };
  }
  Fake* operator->() const { return fake_; }

 private:
  std::unique_ptr<DiskIo> real_;
  Fake* fake_ = nullptr;
};

}  // namespace cairn::fakes

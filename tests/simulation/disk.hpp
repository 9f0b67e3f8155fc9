#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "tests/simulation/queue.hpp"
#include "transport/io/disk_io.hpp"

namespace cairn::sim {

// A simulated disk over real files in a file system in memory. The queue decides when bytes move:
// some sectors of a call at once, the rest at its end, calls in any order. The disk keeps the bytes
// that a write replaced until the next flush, so that a power cut can restore any part of them.
class Disk final : public DiskIo {
 public:
  static constexpr std::uint64_t kSectorBytes = 512;
  struct Faults {
    // One in this many calls fails after it moved a part; 0: none.
    std::uint64_t fails_once_in = 0;
    // One in this many writes finds the disk full; 0: none.
    std::uint64_t full_once_in = 0;
  };
  explicit Disk(Queue& queue) : queue_(queue) {}
  void set_faults(Faults faults) { faults_ = faults; }
  std::uint64_t failures() const { return failures_; }

  void submit(DiskCall call, Done done) override;
  Result<> flush(int fd) override;
  Result<> punch(int fd, DiskRange range) override;

  // Copies the folder as it would be if everything stopped now. Any part of the calls under way is
  // done. A power cut also undoes any part of the writes that were not flushed.
  struct Stop {
    std::filesystem::path from;
    std::filesystem::path to;
    bool power_cut = false;
  };
  void stop(const Stop& at);

 protected:
  void wait(Mutex& mutex, Condition&) override { queue_.wait(mutex, "a call of the disk"); }

 private:
  // A part of a call that moves at once.
  struct Sector {
    std::byte* memory = nullptr;
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;
  };
  struct Flight {
    DiskCall::Kind kind;
    int fd;
    ::ino_t file;
    std::vector<Sector> left;
    Done done;
    std::optional<Error> error = {};
  };
  using Replaced = std::array<std::byte, kSectorBytes>;
  void move(Flight& flight, const Sector& sector);
  void end(std::list<Flight>::iterator flight);
  void keep_replaced(int fd, std::uint64_t sector);

  Queue& queue_;
  Faults faults_;
  std::uint64_t failures_ = 0;
  std::list<Flight> flights_;
  std::map<::ino_t, std::map<std::uint64_t, Replaced>> replaced_;  // by sector
};

}  // namespace cairn::sim

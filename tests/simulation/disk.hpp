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

// A disk of the queue. Its files are real ones, of a file system in memory; when their bytes move
// is the queue's affair: some sectors of a call at once, the rest at its end, calls in any order.
// What a write replaced is kept until the next flush, so that a power cut can bring any part of it
// back.
class Disk final : public DiskIo {
 public:
  static constexpr std::uint64_t kSectorBytes = 512;
  struct Faults {
    // Of so many calls one fails after it moved a part; 0: none.
    std::uint64_t fails_once_in = 0;
    // Of so many writes one finds the disk full; 0: none.
    std::uint64_t full_once_in = 0;
  };
  explicit Disk(Queue& queue) : queue_(queue) {}
  void set_faults(Faults faults) { faults_ = faults; }
  std::uint64_t failures() const { return failures_; }

  void submit(DiskCall call, Done done) override;
  Result<> flush(int fd) override;

  // What the folder holds if everything stops now, as a copy. Of calls under way any part is done;
  // with a power cut any part of what was not flushed is undone.
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
  void keep_replaced(const Flight& flight, const Sector& sector);

  Queue& queue_;
  Faults faults_;
  std::uint64_t failures_ = 0;
  std::list<Flight> flights_;
  std::map<::ino_t, std::map<std::uint64_t, Replaced>> replaced_;  // by sector
};

}  // namespace cairn::sim

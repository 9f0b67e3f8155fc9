#include "tests/simulation/disk.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/file_descriptor.hpp"
#include "base/thread.hpp"
#include "blockmgr/disk/index_file.hpp"

namespace cairn::sim {
namespace {

namespace fs = std::filesystem;

::ino_t file_of(int fd) {
  struct ::stat status {};
  CAIRN_ASSERT(::fstat(fd, &status) == 0, "a call on a file that is not open");
  return status.st_ino;
}

void write_at(int fd, const std::byte* bytes, std::uint64_t size_bytes, std::uint64_t at) {
  CAIRN_ASSERT(::pwrite(fd, bytes, size_bytes, static_cast<::off_t>(at)) ==
                   static_cast<::ssize_t>(size_bytes),
               "the simulation's own folder has no room");
}

// A log is mapped, and the system writes its pages back at any time. After a power cut each page is
// as it was at some moment. Records are only appended, so that is a beginning of its current bytes.
void lose_pages_of_log(int fd, Random& random) {
  constexpr std::uint64_t kPageBytes = 4096;
  struct ::stat status {};
  CAIRN_ASSERT(::fstat(fd, &status) == 0, "a log cannot be examined");
  const std::array<std::byte, kPageBytes> zeros{};
  const auto write_zeros = [&](std::uint64_t from, std::uint64_t to) {
    write_at(fd, zeros.data(), to - from, from);
  };
  const auto size_bytes = static_cast<std::uint64_t>(status.st_size);
  const std::uint64_t lost_of_four = random.below(5);
  for (std::uint64_t page = 0; page < size_bytes; page += kPageBytes) {
    std::byte first{};
    if (page > 0 &&
        (::pread(fd, &first, 1, static_cast<::off_t>(page)) != 1 || first == std::byte{})) {
      std::array<std::byte, 64> begin{};
      if (::pread(fd, begin.data(), begin.size(), static_cast<::off_t>(page)) ==
              static_cast<::ssize_t>(begin.size()) &&
          begin == std::array<std::byte, 64>{}) {
        break;  // no record was added after this
      }
    }
    if (random.below(4) >= lost_of_four) continue;
    const std::uint64_t kept_bytes = random.once_in(3) ? 0 : random.below(kPageBytes);
    if (page > 0) {
      write_zeros(page + kept_bytes, page + kPageBytes);
    } else if (kept_bytes >= sizeof(IndexFileHead)) {
      write_zeros(kept_bytes, kPageBytes);
      const LogEnding open = LogEnding::open;
      write_at(fd, reinterpret_cast<const std::byte*>(&open), sizeof(open),
               offsetof(IndexFileHead, ending));
    } else {
      write_zeros(0, kPageBytes);
    }
  }
  // The machine restarts.
  const std::uint64_t boot = random.next();
  write_at(fd, reinterpret_cast<const std::byte*>(&boot), sizeof(boot),
           offsetof(IndexFileHead, boot));
}

}  // namespace

void Disk::submit(DiskCall call, Done done) {
  Random& random = queue_.random();
  Flight flight{.kind = call.kind,
                .fd = call.fd,
                .file = file_of(call.fd),
                .left = {},
                .done = std::move(done)};
  for (DiskRun run : call.runs) {
    while (run.size_bytes > 0) {
      const std::uint64_t part =
          std::min(run.size_bytes, kSectorBytes - run.offset_bytes % kSectorBytes);
      flight.left.push_back({run.memory, run.offset_bytes, part});
      run.memory += part;
      run.offset_bytes += part;
      run.size_bytes -= part;
    }
  }
  const bool writes = call.kind == DiskCall::Kind::write;
  if (faults_.fails_once_in != 0 && random.once_in(faults_.fails_once_in)) {
    flight.error = Error{ErrorCode::io_error, "the simulated disk fails this call"};
  } else if (writes && faults_.full_once_in != 0 && random.once_in(faults_.full_once_in)) {
    flight.error = Error{ErrorCode::no_capacity, "the simulated disk is full"};
  }
  if (flight.error) ++failures_;
  // Any part of the call may move at once.
  std::erase_if(flight.left, [&](const Sector& sector) {
    if (!random.once_in(3)) return false;
    move(flight, sector);
    return true;
  });
  flights_.push_back(std::move(flight));
  queue_.after(queue_.some_delay(), [this, at = std::prev(flights_.end())] { end(at); });
}

void Disk::move(Flight& flight, const Sector& sector) {
  if (flight.kind == DiskCall::Kind::write) {
    keep_replaced(flight.fd, sector.offset_bytes / kSectorBytes);
    write_at(flight.fd, sector.memory, sector.size_bytes, sector.offset_bytes);
    return;
  }
  const ::ssize_t moved = ::pread(flight.fd, sector.memory, sector.size_bytes,
                                  static_cast<::off_t>(sector.offset_bytes));
  // A scrub pins nothing, so its slot may have been cut off when the tier shrank.
  if (moved != static_cast<::ssize_t>(sector.size_bytes) && !flight.error) {
    flight.error = Error{ErrorCode::io_error, "the file ended before the call's last byte"};
  }
}

void Disk::keep_replaced(int fd, std::uint64_t sector) {
  const auto [at, is_new] = replaced_[file_of(fd)].try_emplace(sector);
  if (!is_new) return;
  const ::ssize_t read =
      ::pread(fd, at->second.data(), kSectorBytes, static_cast<::off_t>(sector * kSectorBytes));
  CAIRN_ASSERT(read >= 0, "the bytes that a write replaces cannot be read");
}

void Disk::end(std::list<Flight>::iterator at) {
  Flight flight = std::move(*at);
  flights_.erase(at);
  for (const Sector& sector : flight.left) {
    // Some bytes of a failing call never move.
    if (flight.error && queue_.random().once_in(2)) continue;
    move(flight, sector);
  }
  guarded("disk", [&] {
    if (flight.error) {
      flight.done(std::move(*flight.error));
    } else {
      flight.done({});
    }
  });
}

Result<> Disk::flush(int fd) {
  const ::ino_t file = file_of(fd);
  if (faults_.fails_once_in != 0 && queue_.random().once_in(faults_.fails_once_in)) {
    ++failures_;
    return Error{ErrorCode::io_error, "the simulated disk fails this flush"};
  }
  // When a flush ends, all writes that ended before it began are durable. Calls go on meanwhile.
  replaced_.erase(file);
  queue_.advance(queue_.some_delay());
  return {};
}

Result<> Disk::punch(int fd, DiskRange range) {
  if (faults_.fails_once_in != 0 && queue_.random().once_in(faults_.fails_once_in)) {
    ++failures_;
    return Error{ErrorCode::io_error, "the simulated disk fails this hole"};
  }
  for (const Flight& flight : flights_) {
    if (flight.file != file_of(fd)) continue;
    for (const Sector& sector : flight.left) {
      CAIRN_ASSERT(sector.offset_bytes >= range.offset_bytes + range.size_bytes ||
                       sector.offset_bytes + sector.size_bytes <= range.offset_bytes ||
                       flight.kind == DiskCall::Kind::read,
                   "a hole would take bytes that are being written");
    }
  }
  struct ::stat status {};
  CAIRN_ASSERT(::fstat(fd, &status) == 0, "a hole in a file that is not open");
  const std::uint64_t end =
      std::min(range.offset_bytes + range.size_bytes, static_cast<std::uint64_t>(status.st_size));
  for (std::uint64_t at = range.offset_bytes; at < end; at += kSectorBytes) {
    keep_replaced(fd, at / kSectorBytes);
  }
  auto punched = punch_hole(fd, range);
  queue_.advance(queue_.some_delay());
  return punched;
}

void Disk::stop(const Stop& at) {
  fs::remove_all(at.to);
  fs::copy(at.from, at.to, fs::copy_options::recursive);
  Random& random = queue_.random();
  for (const auto& entry : fs::recursive_directory_iterator(at.from)) {
    if (!entry.is_regular_file()) continue;
    struct ::stat status {};
    CAIRN_ASSERT(::stat(entry.path().c_str(), &status) == 0, "a file disappeared during the copy");
    const FileDescriptor copy(
        ::open((at.to / entry.path().lexically_relative(at.from)).c_str(), O_RDWR | O_CLOEXEC));
    CAIRN_ASSERT(copy.get() >= 0, "the copy of a file cannot be opened");
    for (const Flight& flight : flights_) {
      if (flight.kind != DiskCall::Kind::write || flight.file != status.st_ino) continue;
      for (const Sector& sector : flight.left) {
        if (random.once_in(2)) {
          write_at(copy.get(), sector.memory, sector.size_bytes, sector.offset_bytes);
        }
      }
    }
    if (!at.power_cut) continue;
    if (entry.path().filename().native().find("~log.") != std::string::npos) {
      lose_pages_of_log(copy.get(), random);
    }
    const auto replaced = replaced_.find(status.st_ino);
    if (replaced == replaced_.end()) continue;
    // Undoes all, none or any part of the writes that were not flushed.
    const std::uint64_t lost_of_four = random.below(5);
    for (const auto& [sector, bytes] : replaced->second) {
      if (random.below(4) < lost_of_four) {
        write_at(copy.get(), bytes.data(), bytes.size(), sector * kSectorBytes);
      }
    }
  }
}

}  // namespace cairn::sim

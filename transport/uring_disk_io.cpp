#include "transport/uring_disk_io.hpp"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/assert.hpp"
#include "base/file_error.hpp"
#include "base/mutex.hpp"

namespace cairn {
namespace {

// The most buffers that one operation takes on Linux.
constexpr std::size_t kMaxVectors = 1024;

std::string words_of(int error_number) { return std::generic_category().message(error_number); }

// A part of a call that is one operation.
struct Piece {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::vector<iovec> vectors;
  std::size_t first = 0;  // of the vectors, the first with bytes left
  int buffer = -1;        // the registered one that a piece of one vector lies in
};

void drop_front(Piece& piece, std::uint64_t moved_bytes) {
  piece.offset_bytes += moved_bytes;
  piece.size_bytes -= moved_bytes;
  while (moved_bytes > 0) {
    iovec& front = piece.vectors[piece.first];
    const std::uint64_t part = std::min<std::uint64_t>(moved_bytes, front.iov_len);
    front.iov_base = static_cast<std::byte*>(front.iov_base) + part;
    front.iov_len -= part;
    moved_bytes -= part;
    if (front.iov_len == 0) ++piece.first;
  }
}

std::vector<Piece> cut(std::span<const DiskRun> runs, std::uint64_t piece_bytes) {
  std::vector<Piece> pieces;
  for (DiskRun run : runs) {
    while (run.size_bytes > 0) {
      const bool joins = !pieces.empty() && pieces.back().size_bytes < piece_bytes &&
                         pieces.back().vectors.size() < kMaxVectors &&
                         pieces.back().offset_bytes + pieces.back().size_bytes == run.offset_bytes;
      if (!joins) pieces.push_back({.offset_bytes = run.offset_bytes, .vectors = {}});
      Piece& piece = pieces.back();
      const std::uint64_t part = std::min(run.size_bytes, piece_bytes - piece.size_bytes);
      piece.vectors.push_back({run.memory, part});
      piece.size_bytes += part;
      run.memory += part;
      run.offset_bytes += part;
      run.size_bytes -= part;
    }
  }
  return pieces;
}

// A part of memory that the kernel knows by number, on every ring.
struct RegisteredBuffer {
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  unsigned number = 0;

  bool holds(const iovec& vector) const {
    auto* const begin = static_cast<std::byte*>(vector.iov_base);
    return begin >= data && begin + vector.iov_len <= data + size_bytes;
  }
};
using RegisteredBuffers = std::vector<RegisteredBuffer>;

// The kernel takes no larger ones.
constexpr std::uint64_t kMaxBufferBytes = 1ull << 30;
// 256 GiB of them at once; memory beyond that is moved as it is without.
constexpr unsigned kMaxBuffers = 256;

void find_buffers(std::vector<Piece>& pieces, const RegisteredBuffers& buffers) {
  for (Piece& piece : pieces) {
    if (piece.vectors.size() != 1) continue;
    for (const RegisteredBuffer& buffer : buffers) {
      if (buffer.holds(piece.vectors.front())) piece.buffer = static_cast<int>(buffer.number);
    }
  }
}

class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (open_) ::io_uring_queue_exit(&ring_);
  }

  Result<> open(std::uint32_t depth) {
    if (const int error = ::io_uring_queue_init(depth, &ring_, 0); error < 0) {
      return Error{ErrorCode::unavailable, "io_uring is refused: " + words_of(-error)};
    }
    open_ = true;
    return {};
  }
  io_uring* get() { return &ring_; }

  // Also of a ring that is in use. An empty vector lets go of what was there.
  Result<> set_buffer(unsigned number, iovec memory) {
    if (!has_table_) {
      const int error = ::io_uring_register_buffers_sparse(&ring_, kMaxBuffers);
      if (error < 0) return refused(error);
      has_table_ = true;
    }
    const int set = ::io_uring_register_buffers_update_tag(&ring_, number, &memory, &kNoTag, 1);
    if (set < 0) return refused(set);
    return {};
  }

 private:
  static Error refused(int error) {
    return {ErrorCode::unavailable, "io_uring refuses registered buffers: " + words_of(-error)};
  }
  static constexpr __u64 kNoTag = 0;
  io_uring ring_{};
  bool open_ = false;
  bool has_table_ = false;
};

// Moves the pieces of one call on one ring. On return nothing is under way.
class UringCall {
 public:
  enum class Kind : std::uint8_t { read, write };
  struct Target {
    Kind kind;
    int fd;
  };
  UringCall(Ring& ring, Target target, const UringOptions& options)
      : ring_(ring), target_(target), options_(options) {}

  Result<> move(std::vector<Piece> pieces) {
    std::size_t next = 0;
    while (under_way_ > 0 || (!error_ && (next < pieces.size() || !again_.empty()))) {
      while (!error_ && under_way_ < options_.depth && (!again_.empty() || next < pieces.size())) {
        if (!again_.empty()) {
          prepare(*again_.back());
          again_.pop_back();
        } else {
          prepare(pieces[next++]);
        }
      }
      const int submitted = ::io_uring_submit_and_wait(ring_.get(), 1);
      // The kernel has what was prepared, or takes it with the next call.
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        CAIRN_ASSERT(false, "io_uring may still be writing into memory that nobody waits for");
      }
      io_uring_cqe* done = nullptr;
      while (::io_uring_peek_cqe(ring_.get(), &done) == 0) {
        Piece& piece = *static_cast<Piece*>(::io_uring_cqe_get_data(done));
        const std::int32_t moved = done->res;
        ::io_uring_cqe_seen(ring_.get(), done);
        --under_way_;
        ended(piece, options_.ended ? options_.ended(moved) : moved);
      }
    }
    if (error_) return *error_;
    return {};
  }

 private:
  void prepare(Piece& piece) {
    io_uring_sqe* const sqe = ::io_uring_get_sqe(ring_.get());
    CAIRN_ASSERT(sqe != nullptr, "a ring has as many entries as pieces under way");
    const auto vectors = static_cast<unsigned>(piece.vectors.size() - piece.first);
    const iovec* const first = piece.vectors.data() + piece.first;
    if (piece.buffer >= 0 && target_.kind == Kind::read) {
      ::io_uring_prep_read_fixed(sqe, target_.fd, first->iov_base,
                                 static_cast<unsigned>(first->iov_len), piece.offset_bytes,
                                 piece.buffer);
    } else if (piece.buffer >= 0) {
      ::io_uring_prep_write_fixed(sqe, target_.fd, first->iov_base,
                                  static_cast<unsigned>(first->iov_len), piece.offset_bytes,
                                  piece.buffer);
    } else if (target_.kind == Kind::read) {
      ::io_uring_prep_readv(sqe, target_.fd, first, vectors, piece.offset_bytes);
    } else {
      ::io_uring_prep_writev(sqe, target_.fd, first, vectors, piece.offset_bytes);
    }
    ::io_uring_sqe_set_data(sqe, &piece);
    ++under_way_;
  }

  // The kernel may stop anywhere in the middle: what is left is asked for again.
  void ended(Piece& piece, std::int32_t moved) {
    if (moved == -EINTR || moved == -EAGAIN) {
      again_.push_back(&piece);
    } else if (moved < 0) {
      fail(piece, -moved);
    } else if (moved == 0) {
      fail(piece, 0);
    } else {
      drop_front(piece, static_cast<std::uint64_t>(moved));
      if (piece.size_bytes > 0) again_.push_back(&piece);
    }
  }

  void fail(const Piece& piece, int error_number) {
    if (error_) return;
    const std::string call = std::string(target_.kind == Kind::read ? "read" : "write") +
                             " at offset " + std::to_string(piece.offset_bytes);
    if (error_number == 0) {
      error_ = Error{ErrorCode::io_error, call + " ended with " + std::to_string(piece.size_bytes) +
                                              " bytes missing: end of file"};
      return;
    }
    error_ = Error{file_error_code(error_number), call + " failed: " + words_of(error_number)};
  }

  Ring& ring_;
  const Target target_;
  const UringOptions& options_;
  std::uint32_t under_way_ = 0;
  std::vector<Piece*> again_;
  std::optional<Error> error_;
};

class UringDiskIo final : public DiskIo {
 public:
  explicit UringDiskIo(UringOptions options) : options_(std::move(options)) {}

  Result<> open() {
    MutexLock lock(mutex_);
    for (std::uint32_t i = 0; i < options_.rings; ++i) {
      auto ring = std::make_unique<Ring>();
      CAIRN_TRY(ring->open(options_.depth));
      free_.push_back(ring.get());
      rings_.push_back(std::move(ring));
    }
    return {};
  }

  Result<> read(int fd, std::span<const DiskRun> runs) override {
    return call({UringCall::Kind::read, fd}, runs);
  }
  Result<> write(int fd, std::span<const DiskRun> runs) override {
    return call({UringCall::Kind::write, fd}, runs);
  }

  Result<> prepare(std::span<std::byte> memory) override {
    if (!options_.register_buffers) return {};
    MutexLock registering(registering_);
    auto changed = std::make_shared<RegisteredBuffers>(*known());
    const std::size_t before = changed->size();
    for (std::uint64_t at = 0; at < memory.size(); at += kMaxBufferBytes) {
      const RegisteredBuffer buffer{
          memory.data() + at, std::min(kMaxBufferBytes, memory.size() - at), free_number(*changed)};
      changed->push_back(buffer);
      if (auto set = set_on_all(buffer.number, {buffer.data, buffer.size_bytes}); !set) {
        for (std::size_t i = before; i < changed->size(); ++i) let_go((*changed)[i].number);
        return set;
      }
    }
    publish(std::move(changed));
    return {};
  }
  void forget(std::span<std::byte> memory) override {
    MutexLock registering(registering_);
    const auto before = known();
    auto kept = std::make_shared<RegisteredBuffers>();
    std::vector<unsigned> gone;
    for (const RegisteredBuffer& buffer : *before) {
      if (buffer.data >= memory.data() && buffer.data < memory.data() + memory.size()) {
        gone.push_back(buffer.number);
      } else {
        kept->push_back(buffer);
      }
    }
    publish(std::move(kept));
    for (unsigned number : gone) let_go(number);
  }

 private:
  static unsigned free_number(const RegisteredBuffers& buffers) {
    unsigned number = 0;
    while (std::ranges::any_of(buffers, [&](const auto& b) { return b.number == number; })) {
      ++number;
    }
    return number;
  }
  std::shared_ptr<const RegisteredBuffers> known() {
    MutexLock lock(mutex_);
    return buffers_;
  }
  void publish(std::shared_ptr<const RegisteredBuffers> buffers) {
    MutexLock lock(mutex_);
    buffers_ = std::move(buffers);
  }
  Result<> set_on_all(unsigned number, iovec memory) CAIRN_REQUIRES(registering_) {
    if (number >= kMaxBuffers) {
      return Error{ErrorCode::unavailable, "no more than " + std::to_string(kMaxBuffers) +
                                               " GiB can be registered with io_uring"};
    }
    for (const auto& ring : rings_) CAIRN_TRY(ring->set_buffer(number, memory));
    return {};
  }
  // Of those rings that have it.
  void let_go(unsigned number) CAIRN_REQUIRES(registering_) {
    if (number >= kMaxBuffers) return;
    for (const auto& ring : rings_) static_cast<void>(ring->set_buffer(number, {nullptr, 0}));
  }

  Result<> call(UringCall::Target target, std::span<const DiskRun> runs) {
    Ring* ring = nullptr;
    std::shared_ptr<const RegisteredBuffers> buffers;
    {
      MutexLock lock(mutex_);
      while (free_.empty()) given_back_.wait(mutex_);
      ring = free_.back();
      free_.pop_back();
      buffers = buffers_;
    }
    std::vector<Piece> pieces = cut(runs, options_.piece_bytes);
    find_buffers(pieces, *buffers);
    Result<> moved = UringCall(*ring, target, options_).move(std::move(pieces));
    MutexLock lock(mutex_);
    free_.push_back(ring);
    given_back_.notify_one();
    return moved;
  }

  const UringOptions options_;
  // Held while buffers are registered, which takes 0.1 s a GiB and ring: no call waits for that.
  // Before mutex_.
  Mutex registering_;
  Mutex mutex_;
  Condition given_back_;
  std::vector<std::unique_ptr<Ring>> rings_;  // as open() made them
  std::vector<Ring*> free_ CAIRN_GUARDED_BY(mutex_);
  std::shared_ptr<const RegisteredBuffers> buffers_ CAIRN_GUARDED_BY(mutex_) =
      std::make_shared<RegisteredBuffers>();
};

}  // namespace

Result<std::unique_ptr<DiskIo>> make_uring_disk_io(UringOptions options) {
  CAIRN_ASSERT(options.rings > 0 && options.depth > 0, "no call would ever end");
  CAIRN_ASSERT(options.piece_bytes > 0 && options.piece_bytes % 4096 == 0,
               "direct I/O would be cut where it may not be");
  auto made = std::make_unique<UringDiskIo>(std::move(options));
  CAIRN_TRY(made->open());
  return std::unique_ptr<DiskIo>(std::move(made));
}

}  // namespace cairn

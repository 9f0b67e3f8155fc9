#include "transport/io/uring_disk_io.hpp"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/assert.hpp"
#include "base/file_error.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"

namespace cairn {
namespace {

std::string words_of(int error_number) { return std::generic_category().message(error_number); }

struct Call;

// The part of a call that one operation moves.
struct Piece {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::vector<iovec> vectors;
  std::size_t first = 0;  // index of the first vector with bytes left
  int buffer = -1;        // number of the registered buffer that contains its only vector
  Call* call = nullptr;
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
                         pieces.back().vectors.size() < kMaxDiskVectors &&
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

// Memory that is registered with the kernel, by number.
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

// The kernel's limit.
constexpr std::uint64_t kMaxBufferBytes = 1ull << 30;
// Up to 256 GiB. Further memory is used unregistered.
constexpr unsigned kMaxBuffers = 256;

void find_buffers(std::vector<Piece>& pieces, const RegisteredBuffers& buffers) {
  for (Piece& piece : pieces) {
    if (piece.vectors.size() != 1) continue;
    for (const RegisteredBuffer& buffer : buffers) {
      if (buffer.holds(piece.vectors.front())) piece.buffer = static_cast<int>(buffer.number);
    }
  }
}

// A call in progress, with its pieces.
struct Call {
  DiskCall::Kind kind;
  int fd;
  DiskIo::Done done;
  std::vector<Piece> pieces;
  std::size_t next = 0;       // the first piece that has not started
  std::vector<Piece*> again;  // to be continued or retried; reserved for all pieces
  std::uint32_t under_way = 0;
  std::optional<Error> error;  // if set, no piece starts any more

  bool has_more() const { return !error && (next < pieces.size() || !again.empty()); }
  bool has_ended() const { return under_way == 0 && !has_more(); }

  void fail(const Piece& piece, int error_number) {
    if (error) return;
    const std::string what = std::string(kind == DiskCall::Kind::read ? "read" : "write") +
                             " at offset " + std::to_string(piece.offset_bytes);
    if (error_number == 0) {
      error = Error{ErrorCode::io_error, what + " ended with " + std::to_string(piece.size_bytes) +
                                             " bytes missing: end of file"};
    } else {
      error = Error{file_error_code(error_number), what + " failed: " + words_of(error_number)};
    }
  }
};

class UringDiskIo final : public DiskIo {
 public:
  explicit UringDiskIo(UringOptions options) : options_(std::move(options)) {}
  ~UringDiskIo() override {
    if (!open_) return;
    if (reaper_.joinable()) {
      {
        MutexLock lock(mutex_);
        CAIRN_ASSERT(calls_.empty() && under_way_ == 0, "a call would never end");
        // A null operation without a piece ends the reaper.
        io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
        ::io_uring_prep_nop(sqe);
        ::io_uring_sqe_set_data(sqe, nullptr);
        submit_prepared();
      }
      reaper_.join();
    }
    ::io_uring_queue_exit(&ring_);
  }

  Result<> open() {
    if (const int error = ::io_uring_queue_init(options_.depth, &ring_, 0); error < 0) {
      return Error{ErrorCode::unavailable, "io_uring is refused: " + words_of(-error)};
    }
    open_ = true;
    auto reaper = Thread::start("disk", [this](const std::stop_token&) { reap(); });
    if (!reaper) return std::move(reaper).error();
    reaper_ = std::move(*reaper);
    return {};
  }

  void submit(DiskCall call, Done done) override {
    std::list<Call> made;
    made.push_back({.kind = call.kind,
                    .fd = call.fd,
                    .done = std::move(done),
                    .pieces = cut(call.runs, options_.piece_bytes),
                    .again = {},
                    .error = {}});
    // A call without bytes is one null operation, so that it also ends on the reaper thread.
    std::vector<Piece>& pieces = made.front().pieces;
    if (pieces.empty()) pieces.emplace_back();
    made.front().again.reserve(pieces.size());
    MutexLock lock(mutex_);
    find_buffers(pieces, buffers_);
    calls_.splice(calls_.end(), made);
    begin_pieces();
  }

  Result<> prepare(std::span<std::byte> memory) override {
    if (!options_.register_buffers) return {};
    MutexLock registering(registering_);
    RegisteredBuffers added;
    for (std::uint64_t at = 0; at < memory.size(); at += kMaxBufferBytes) {
      const RegisteredBuffer buffer{
          memory.data() + at, std::min(kMaxBufferBytes, memory.size() - at), free_number(added)};
      auto set = set_buffer(buffer.number, {buffer.data, buffer.size_bytes});
      if (!set) {
        for (const RegisteredBuffer& made : added) let_go(made.number);
        return set;
      }
      added.push_back(buffer);
    }
    MutexLock lock(mutex_);
    buffers_.insert(buffers_.end(), added.begin(), added.end());
    return {};
  }
  void forget(std::span<std::byte> memory) override {
    MutexLock registering(registering_);
    std::vector<unsigned> gone;
    {
      MutexLock lock(mutex_);
      std::erase_if(buffers_, [&](const RegisteredBuffer& buffer) {
        const bool is_in =
            buffer.data >= memory.data() && buffer.data < memory.data() + memory.size();
        if (is_in) gone.push_back(buffer.number);
        return is_in;
      });
    }
    for (const unsigned number : gone) let_go(number);
  }

 private:
  unsigned free_number(const RegisteredBuffers& added) CAIRN_REQUIRES(registering_) {
    RegisteredBuffers taken = added;
    {
      MutexLock lock(mutex_);
      taken.insert(taken.end(), buffers_.begin(), buffers_.end());
    }
    unsigned number = 0;
    while (std::ranges::any_of(taken, [&](const auto& b) { return b.number == number; })) ++number;
    return number;
  }
  // Also works while the ring is in use. An empty vector unregisters the buffer.
  Result<> set_buffer(unsigned number, iovec memory) CAIRN_REQUIRES(registering_) {
    const auto refused = [](int error) -> Result<> {
      return Error{ErrorCode::unavailable,
                   "io_uring refuses registered buffers: " + words_of(-error)};
    };
    if (number >= kMaxBuffers) {
      return Error{ErrorCode::unavailable, "no more than " + std::to_string(kMaxBuffers) +
                                               " GiB can be registered with io_uring"};
    }
    if (!has_table_) {
      const int error = ::io_uring_register_buffers_sparse(&ring_, kMaxBuffers);
      if (error < 0) return refused(error);
      has_table_ = true;
    }
    const __u64 no_tag = 0;
    const int set = ::io_uring_register_buffers_update_tag(&ring_, number, &memory, &no_tag, 1);
    if (set < 0) return refused(set);
    return {};
  }
  void let_go(unsigned number) CAIRN_REQUIRES(registering_) {
    static_cast<void>(set_buffer(number, {nullptr, 0}));
  }

  // Starts pieces of the oldest calls first, while there is room.
  void begin_pieces() CAIRN_REQUIRES(mutex_) {
    bool begun = false;
    for (Call& call : calls_) {
      while (under_way_ < options_.depth && call.has_more()) {
        if (!call.again.empty()) {
          prepare_piece(call, *call.again.back());
          call.again.pop_back();
        } else {
          prepare_piece(call, call.pieces[call.next++]);
        }
        begun = true;
      }
      if (under_way_ == options_.depth) break;
    }
    if (begun) submit_prepared();
  }

  // Submits all prepared operations. The kernel stops at one that it refuses, so this loops.
  void submit_prepared() CAIRN_REQUIRES(mutex_) {
    while (::io_uring_sq_ready(&ring_) > 0) {
      const int submitted = ::io_uring_submit(&ring_);
      if (submitted >= 0) continue;
      // Short of memory, or interrupted: try again.
      const bool later = submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY;
      CAIRN_ASSERT(later, "io_uring would hold pieces that nobody begins");
      std::this_thread::yield();
    }
  }

  void prepare_piece(Call& call, Piece& piece) CAIRN_REQUIRES(mutex_) {
    io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
    CAIRN_ASSERT(sqe != nullptr, "a ring has as many entries as pieces under way");
    const auto vectors = static_cast<unsigned>(piece.vectors.size() - piece.first);
    const iovec* const first = piece.vectors.data() + piece.first;
    if (vectors == 0) {
      ::io_uring_prep_nop(sqe);
    } else if (piece.buffer >= 0 && call.kind == DiskCall::Kind::read) {
      ::io_uring_prep_read_fixed(sqe, call.fd, first->iov_base,
                                 static_cast<unsigned>(first->iov_len), piece.offset_bytes,
                                 piece.buffer);
    } else if (piece.buffer >= 0) {
      ::io_uring_prep_write_fixed(sqe, call.fd, first->iov_base,
                                  static_cast<unsigned>(first->iov_len), piece.offset_bytes,
                                  piece.buffer);
    } else if (call.kind == DiskCall::Kind::read) {
      ::io_uring_prep_readv(sqe, call.fd, first, vectors, piece.offset_bytes);
    } else {
      ::io_uring_prep_writev(sqe, call.fd, first, vectors, piece.offset_bytes);
    }
    piece.call = &call;
    ::io_uring_sqe_set_data(sqe, &piece);
    ++call.under_way;
    ++under_way_;
  }

  // Collects completed operations; only this thread does.
  void reap() {
    std::list<Call> ended;
    bool last = false;
    while (!last) {
      io_uring_cqe* done = nullptr;
      const int waited = ::io_uring_wait_cqe(&ring_, &done);
      if (waited == -EINTR || waited == -EAGAIN) continue;
      CAIRN_ASSERT(waited == 0, "io_uring may still be writing into memory that nobody waits for");
      {
        MutexLock lock(mutex_);
        while (::io_uring_peek_cqe(&ring_, &done) == 0) {
          auto* const piece = static_cast<Piece*>(::io_uring_cqe_get_data(done));
          const std::int32_t moved = done->res;
          ::io_uring_cqe_seen(&ring_, done);
          if (piece == nullptr) {
            last = true;
            continue;
          }
          --under_way_;
          take_end(*piece, options_.ended && piece->size_bytes > 0 ? options_.ended(moved) : moved);
        }
        begin_pieces();
        for (auto call = calls_.begin(); call != calls_.end();) {
          const auto next = std::next(call);
          if (call->has_ended()) ended.splice(ended.end(), calls_, call);
          call = next;
        }
      }
      for (Call& call : ended) notify(call);
      ended.clear();
    }
  }

  // Short I/O: queues the rest of the piece again.
  static void take_end(Piece& piece, std::int32_t moved) {
    Call& call = *piece.call;
    --call.under_way;
    if (piece.size_bytes == 0) return;
    if (moved == -EINTR || moved == -EAGAIN) {
      call.again.push_back(&piece);
    } else if (moved <= 0) {
      call.fail(piece, -moved);
    } else {
      drop_front(piece, static_cast<std::uint64_t>(moved));
      if (piece.size_bytes > 0) call.again.push_back(&piece);
    }
  }

  static void notify(Call& call) {
    guarded("disk", [&] {
      if (call.error) {
        call.done(std::move(*call.error));
      } else {
        call.done({});
      }
    });
  }

  const UringOptions options_;
  // Held while buffers are registered, which takes 0.1 s per GiB; calls do not wait for it. Lock it
  // before mutex_.
  Mutex registering_;
  bool has_table_ CAIRN_GUARDED_BY(registering_) = false;
  bool open_ = false;
  Mutex mutex_;  // also for submitting to the ring; only the reaper takes completions
  io_uring ring_{};
  std::list<Call> calls_ CAIRN_GUARDED_BY(mutex_);        // oldest first
  std::uint32_t under_way_ CAIRN_GUARDED_BY(mutex_) = 0;  // pieces
  RegisteredBuffers buffers_ CAIRN_GUARDED_BY(mutex_);
  Thread reaper_;
};

}  // namespace

Result<std::unique_ptr<DiskIo>> make_uring_disk_io(UringOptions options) {
  CAIRN_ASSERT(options.depth > 0, "no call would ever end");
  CAIRN_ASSERT(options.piece_bytes > 0 && options.piece_bytes % 4096 == 0,
               "direct I/O would be cut where it may not be");
  auto made = std::make_unique<UringDiskIo>(std::move(options));
  CAIRN_TRY(made->open());
  return std::unique_ptr<DiskIo>(std::move(made));
}

}  // namespace cairn

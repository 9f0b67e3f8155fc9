#include "blockmgr/remote_tier/remote_upload.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/pieces.hpp"
#include "blockmgr/cache/block_pieces.hpp"

namespace cairn {
namespace {

class Uploading : public std::enable_shared_from_this<Uploading> {
 public:
  explicit Uploading(RemoteUpload upload) : upload_(std::move(upload)) {
    context().under_way.enter();
  }
  ~Uploading() { context().under_way.leave(); }

  void start() {
    // Another thread computes the checksum, so that a commit or a match does not wait.
    if (!upload_.may_be_there) {
      return context().executor.post([self = shared_from_this()] { self->read(); });
    }
    context().store.touch({.name = name(), .ttl_ms = context().config.ttl_ms},
                          [self = shared_from_this()](const Result<bool>& there) {
                            if (!there) return self->end(there.error());
                            if (!*there) return self->read();
                            self->is_there();
                          });
  }

 private:
  RemoteContext& context() const { return *upload_.context; }
  std::string name() const { return context().name_of(upload_.key); }

  void read() {
    if (!upload_.reader) {
      auto reader = context().cache->peek(upload_.key);
      if (!reader) return end({});
      upload_.reader = std::make_shared<BlockReader>(std::move(*reader));
    }
    // The bytes may come on the store's thread, or on one that next blocks of a disk wait for.
    upload_.reader->fetch([self = shared_from_this()](const Result<std::span<const iovec>>& bytes) {
      if (!bytes) return self->end({});
      if (!self->context().codec.is_on()) return self->write(*bytes);
      self->context().executor.post([self, bytes = *bytes] { self->write(bytes); });
    });
  }

  void write(std::span<const iovec> bytes) {
    size_bytes_ = total_bytes(bytes);
    header_ = write_remote_header(context().fingerprint_of(upload_.key),
                                  {.key = upload_.key,
                                   .parent = upload_.parent,
                                   .size_bytes = size_bytes_,
                                   .checksum = kept_checksum(*upload_.reader, bytes)});
    std::vector<iovec> from{{header_.data(), header_.size()}};
    encoded_ = context().codec.encode(bytes, element_bytes());
    if (encoded_) {
      from.push_back(piece_of(encoded_->bytes.get(), encoded_->size_bytes));
      upload_.reader.reset();
    } else {
      from.insert(from.end(), bytes.begin(), bytes.end());
    }
    context().store.write(
        {.name = name(), .from = std::move(from), .ttl_ms = context().config.ttl_ms},
        [self = shared_from_this()](const Result<bool>& stored) { self->written(stored); });
  }

  std::uint32_t element_bytes() const {
    const LayoutConfig& shape = context().cache->config().shape_of(upload_.key.kv_group());
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(shape.dtype_width_bytes, kMaxElementBytes));
  }

  void written(const Result<bool>& stored) {
    RemoteCounters& counters = context().counters;
    if (!stored) return end(stored.error());
    if (*stored) {
      ++counters.stored_blocks;
      counters.stored_bytes += size_bytes_;
      context().events.stored(upload_.key, upload_.parent);
      return end({});
    }
    if (context().config.ttl_ms == 0) return is_there();
    context().store.touch({.name = name(), .ttl_ms = context().config.ttl_ms},
                          [self = shared_from_this()](const Result<bool>&) { self->is_there(); });
  }

  void is_there() {
    ++context().counters.there_already;
    end({});
  }

  void end(Result<> result) {
    upload_.reader.reset();
    upload_.ended(std::move(result));
  }

  RemoteUpload upload_;
  std::uint64_t size_bytes_ = 0;
  RemoteHeader header_{};
  std::optional<PlaneCodec::Encoded> encoded_;
};

}  // namespace

void start_upload(RemoteUpload upload) { std::make_shared<Uploading>(std::move(upload))->start(); }

}  // namespace cairn

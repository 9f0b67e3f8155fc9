#include "blockmgr/remote_tier/remote_upload.hpp"

#include <optional>
#include <utility>

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
    context().store.touch({.name = name(), .ttl_ms = context().ttl_ms},
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
    upload_.reader->fetch([self = shared_from_this()](const Result<std::span<const iovec>>& bytes) {
      if (!bytes) return self->end({});
      self->write(*bytes);
    });
  }

  void write(std::span<const iovec> bytes) {
    BlockReader& reader = *upload_.reader;
    header_ = write_remote_header(context().fingerprint_of(upload_.key),
                                  {.key = upload_.key,
                                   .parent = upload_.parent,
                                   .size_bytes = reader.size_bytes(),
                                   .checksum = kept_checksum(reader, bytes)});
    std::vector<iovec> from{{header_.data(), header_.size()}};
    from.insert(from.end(), bytes.begin(), bytes.end());
    context().store.write(
        {.name = name(), .from = std::move(from), .ttl_ms = context().ttl_ms},
        [self = shared_from_this()](const Result<bool>& stored) { self->written(stored); });
  }

  void written(const Result<bool>& stored) {
    RemoteCounters& counters = context().counters;
    if (!stored) return end(stored.error());
    if (*stored) {
      ++counters.stored_blocks;
      counters.stored_bytes += upload_.reader->size_bytes();
      context().events.stored(upload_.key, upload_.parent);
      return end({});
    }
    if (context().ttl_ms == 0) return is_there();
    context().store.touch({.name = name(), .ttl_ms = context().ttl_ms},
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
  RemoteHeader header_{};
};

}  // namespace

void start_upload(RemoteUpload upload) { std::make_shared<Uploading>(std::move(upload))->start(); }

}  // namespace cairn

#include <array>
#include <cstring>

#include "base/hex.hpp"
#include "base/pieces.hpp"
#include "blockmgr/cache/block_pieces.hpp"
#include "server/codec/byte_range.hpp"
#include "server/codec/kv_group_names.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"
#include "server/routes/problem.hpp"

namespace cairn::routes {
namespace {

// The part of scattered memory that a range covers.
std::vector<iovec> part_of(std::span<const iovec> pieces, ByteRange range) {
  std::vector<iovec> part;
  for (const iovec& piece : pieces) {
    if (range.size_bytes == 0) break;
    if (range.offset_bytes >= piece.iov_len) {
      range.offset_bytes -= piece.iov_len;
      continue;
    }
    const auto length =
        std::min<std::uint64_t>(piece.iov_len - range.offset_bytes, range.size_bytes);
    part.push_back({static_cast<std::byte*>(piece.iov_base) + range.offset_bytes,
                    static_cast<std::size_t>(length)});
    range.offset_bytes = 0;
    range.size_bytes -= length;
  }
  return part;
}

// The bytes of one block, already fetched.
class BlockDownload final : public http::Download {
 public:
  BlockDownload(BlockReader reader, std::vector<iovec> pieces, Span span)
      : reader_(std::move(reader)), pieces_(std::move(pieces)), span_(std::move(span)) {}
  void next(UniqueFunction<void(Pieces)> ready) override { ready(std::span<const iovec>(pieces_)); }

 private:
  BlockReader reader_;
  std::vector<iovec> pieces_;
  Span span_;
};

// Identifies the bytes, not the key: other bytes under the same key have another tag.
std::string etag_of(std::uint64_t checksum) {
  std::array<std::byte, sizeof checksum> bytes{};
  std::memcpy(bytes.data(), &checksum, sizeof checksum);
  return "\"" + to_hex(bytes) + "\"";
}

struct KeyRequest {
  std::shared_ptr<Cache> cache;
  BlockKey key;
  BlockPart part;
  LeaseHolder holder;                // who reads it
  std::shared_ptr<LeaseQuota> pins;  // counts the pins
  std::string range;
  std::string if_range;
  std::string if_none_match;
  Span span;  // until the client has the bytes
};

Result<KeyRequest> read_request(const Call& call, std::shared_ptr<Cache> cache) {
  auto key = key_of(call);
  if (!key) return std::move(key).error();
  Query query(call.head.query);
  const BlockPart part = query.part();
  const KvGroupNumber group = read_one_kv_group(query, KvGroupNames(cache->config()));
  CAIRN_TRY(query.finish());
  return KeyRequest{.cache = std::move(cache),
                    .key = in_group(*key, group),
                    .part = part,
                    .holder = call.holder(),
                    .pins = call.pins(),
                    .range = std::string(call.head.range),
                    .if_range = std::string(call.head.if_range),
                    .if_none_match = std::string(call.head.if_none_match),
                    .span = call.begin_span("read")};
}

http::Response head_of(std::string_view etag, const BlockReader& reader) {
  http::Response response;
  response.content_type = kBytesType;
  response.headers.append("ETag: ").append(etag).append("\r\nCairn-Tier: ");
  response.headers.append(to_string(reader.handle().tier));
  response.headers.append("\r\nAccept-Ranges: bytes\r\n");
  return response;
}

// Responds with the headers of the key's copy, without its bytes.
void answer_head(std::string_view etag, unsigned status, const BlockReader& reader, Reply& reply) {
  http::Response response = head_of(etag, reader);
  response.status = status;
  response.announced_bytes = reader.size_bytes();
  reply.send(std::move(response));
}

void send_block(KeyRequest& request, std::string_view etag, BlockReader reader,
                std::span<const iovec> pieces, Reply& reply) {
  const std::uint64_t total_bytes = reader.size_bytes();
  // Ignore the range if it was asked for other bytes than these (RFC 9110, 13.1.5). Blocks have no
  // date, and a weak tag never matches.
  const bool of_these = request.if_range.empty() || request.if_range == etag;
  const auto range = parse_range(of_these ? request.range : "", total_bytes);
  if (!range) {
    http::Response refusal = problem(range.error());
    refusal.headers.append("Content-Range: bytes */").append(std::to_string(total_bytes));
    refusal.headers.append("\r\n");
    return reply.send(std::move(refusal));
  }
  http::Response response = head_of(etag, reader);
  const ByteRange part = range->value_or(ByteRange{0, total_bytes});
  if (*range) {
    response.status = 206;
    response.headers.append("Content-Range: bytes ").append(std::to_string(part.offset_bytes));
    response.headers.append("-").append(std::to_string(part.offset_bytes + part.size_bytes - 1));
    response.headers.append("/").append(std::to_string(total_bytes)).append("\r\n");
  }
  response.download_bytes = part.size_bytes;
  request.span.set("cairn.tier", to_string(reader.handle().tier));
  request.span.set("cairn.bytes", part.size_bytes);
  response.download = std::make_unique<BlockDownload>(std::move(reader), part_of(pieces, part),
                                                      std::move(request.span));
  reply.send(std::move(response));
}

// Reads the highest copy and, if it turns out to be lost, the next one. Each lost copy was dropped,
// so each round finds another. If the client has the bytes or asks for none, and the block's tag is
// known, responds without a read.
class KeyRead : public std::enable_shared_from_this<KeyRead> {
 public:
  KeyRead(KeyRequest request, Reply reply)
      : request_(std::move(request)), reply_(std::move(reply)) {}

  void start() {
    Cache& cache = *request_.cache;
    auto reader = cache.read(request_.key, request_.part, request_.holder, request_.pins);
    if (!reader) return reply_.error(reader.error());
    readers_.push_back(std::move(*reader));
    const auto known = request_.part.is_whole() ? readers_.back().checksum() : std::nullopt;
    if (known && answered_without_bytes(etag_of(*known))) return;
    readers_.back().fetch([self = shared_from_this()](Result<std::span<const iovec>> pieces) {
      self->fetched(std::move(pieces));
    });
  }

 private:
  bool answered_without_bytes(std::string_view etag) {
    const bool is_known_to_client = names_etag(request_.if_none_match, etag);
    if (!is_known_to_client && !reply_.style().head_only) return false;
    answer_head(etag, is_known_to_client ? 304 : 200, readers_.back(), reply_);
    return true;
  }

  void fetched(Result<std::span<const iovec>> pieces) {
    if (pieces) return answer(*pieces);
    const bool copy_lost = pieces.error().code == ErrorCode::io_error ||
                           pieces.error().code == ErrorCode::checksum_mismatch;
    if (!copy_lost || readers_.size() > kNumTiers) return reply_.error(pieces.error());
    start();
  }

  // The checksum of a block is kept after the first read. That of a part is computed each time.
  void answer(std::span<const iovec> pieces) {
    BlockReader& reader = readers_.back();
    const std::string etag =
        etag_of(request_.part.is_whole() ? kept_checksum(reader, pieces) : checksum_of(pieces));
    if (answered_without_bytes(etag)) return;
    send_block(request_, etag, std::move(reader), pieces, reply_);
  }

  KeyRequest request_;
  Reply reply_;
  // Failed readers stay until the end: one of them may be the caller.
  std::vector<BlockReader> readers_;
};

}  // namespace

void get_key(Service&, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto request = read_request(call, std::move(cache));
  if (!request) return reply.error(request.error());
  std::make_shared<KeyRead>(std::move(*request), std::move(reply))->start();
}

}  // namespace cairn::routes

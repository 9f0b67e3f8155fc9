#include "server/codec/byte_range.hpp"
#include "server/codec/ids.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"
#include "server/status.hpp"

namespace cairn::routes {
namespace {

// The part of scattered memory that a range names.
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

// One block's bytes, fetched already.
class BlockDownload final : public http::Download {
 public:
  BlockDownload(BlockReader reader, std::vector<iovec> pieces)
      : reader_(std::move(reader)), pieces_(std::move(pieces)) {}
  void next(UniqueFunction<void(Pieces)> ready) override { ready(std::span<const iovec>(pieces_)); }

 private:
  BlockReader reader_;
  std::vector<iovec> pieces_;
};

// A key names its bytes for ever, so it is their strong tag; a piece is a body of its own.
std::string etag_of(KeyView key, const std::optional<PieceSelector>& piece) {
  std::string tag = "\"";
  tag.append(key_text(key));
  if (piece) {
    tag.append("-").append(std::to_string(piece->layer));
    tag.append("-").append(std::to_string(piece->outer));
  }
  tag.append("\"");
  return tag;
}

struct KeyRequest {
  std::shared_ptr<Cache> cache;
  BlockKey key;
  std::optional<PieceSelector> piece;
  std::string etag;
  std::string range;
};

// The range asked for; none where it is asked for of other bytes than these (RFC 9110, 13.1.5).
// There is no date of these bytes, and a weak tag is nobody's.
std::string_view wanted_range(const http::RequestHead& head, std::string_view etag) {
  return head.if_range.empty() || head.if_range == etag ? head.range : std::string_view();
}

Result<KeyRequest> read_request(Service& service, const Call& call) {
  auto cache = cache_of(service, call);
  if (!cache) return std::move(cache).error();
  auto key = key_of(call);
  if (!key) return std::move(key).error();
  Query query(call.head.query);
  const auto piece = query.piece();
  CAIRN_TRY(query.finish());
  const std::string etag = etag_of(*key, piece);
  return KeyRequest{.cache = std::move(*cache),
                    .key = *key,
                    .piece = piece,
                    .etag = etag,
                    .range = std::string(wanted_range(call.head, etag))};
}

http::Response head_of(const KeyRequest& request, const BlockReader& reader) {
  http::Response response;
  response.content_type = kBytesType;
  response.headers = "ETag: " + request.etag + "\r\nCairn-Tier: ";
  response.headers.append(to_string(reader.handle().tier));
  response.headers.append("\r\nAccept-Ranges: bytes\r\n");
  return response;
}

void send_block(const KeyRequest& request, BlockReader reader, std::span<const iovec> pieces,
                Reply& reply) {
  const std::uint64_t total_bytes = reader.size_bytes();
  const auto range = parse_range(request.range, total_bytes);
  if (!range) {
    http::Response refusal = problem(range.error());
    refusal.headers.append("Content-Range: bytes */").append(std::to_string(total_bytes));
    refusal.headers.append("\r\n");
    return reply.send(std::move(refusal));
  }
  http::Response response = head_of(request, reader);
  const ByteRange part = range->value_or(ByteRange{0, total_bytes});
  if (*range) {
    response.status = 206;
    response.headers.append("Content-Range: bytes ").append(std::to_string(part.offset_bytes));
    response.headers.append("-").append(std::to_string(part.offset_bytes + part.size_bytes - 1));
    response.headers.append("/").append(std::to_string(total_bytes)).append("\r\n");
  }
  response.download_bytes = part.size_bytes;
  response.download = std::make_unique<BlockDownload>(std::move(reader), part_of(pieces, part));
  reply.send(std::move(response));
}

// Reads the highest copy and, where it turns out to be lost, the next one. The copy was dropped
// then, so each round finds another.
class KeyRead : public std::enable_shared_from_this<KeyRead> {
 public:
  KeyRead(KeyRequest request, Reply reply)
      : request_(std::move(request)), reply_(std::move(reply)) {}

  void start() {
    auto reader = request_.cache->read(request_.key, request_.piece);
    if (!reader) return reply_.error(reader.error());
    readers_.push_back(std::move(*reader));
    readers_.back().fetch([self = shared_from_this()](Result<std::span<const iovec>> pieces) {
      self->fetched(std::move(pieces));
    });
  }

 private:
  void fetched(Result<std::span<const iovec>> pieces) {
    if (pieces) return send_block(request_, std::move(readers_.back()), *pieces, reply_);
    const bool copy_lost = pieces.error().code == ErrorCode::io_error ||
                           pieces.error().code == ErrorCode::checksum_mismatch;
    if (!copy_lost || readers_.size() > kNumTiers) return reply_.error(pieces.error());
    start();
  }

  KeyRequest request_;
  Reply reply_;
  // Failed ones stay until the end: this may be called by one of them.
  std::vector<BlockReader> readers_;
};

// What the key's copy is like, without its bytes.
void answer_head(const KeyRequest& request, unsigned status, Reply reply) {
  auto reader = request.cache->read(request.key, request.piece);
  if (!reader) return reply.error(reader.error());
  http::Response response = head_of(request, *reader);
  response.status = status;
  response.announced_bytes = reader->size_bytes();
  reply.send(std::move(response));
}

}  // namespace

void get_key(Service& service, const Call& call, Reply reply) {
  auto request = read_request(service, call);
  if (!request) return reply.error(request.error());
  if (names_etag(call.head.if_none_match, request->etag)) {
    return answer_head(*request, 304, std::move(reply));
  }
  std::make_shared<KeyRead>(std::move(*request), std::move(reply))->start();
}

void head_key(Service& service, const Call& call, Reply reply) {
  auto request = read_request(service, call);
  if (!request) return reply.error(request.error());
  const bool is_known = names_etag(call.head.if_none_match, request->etag);
  answer_head(*request, is_known ? 304 : 200, std::move(reply));
}

}  // namespace cairn::routes

#include <array>
#include <cstring>

#include "base/hex.hpp"
#include "blockmgr/shared/shared_context.hpp"
#include "server/codec/byte_range.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"
#include "server/routes/problem.hpp"
#include "transport/collective/pieces.hpp"

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
  // With a header before them.
  BlockDownload(BlockReader reader, const SharedHeader& header, std::span<const iovec> pieces)
      : reader_(std::move(reader)), header_(header) {
    pieces_.push_back({header_.data(), header_.size()});
    pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
  }
  void next(UniqueFunction<void(Pieces)> ready) override { ready(std::span<const iovec>(pieces_)); }

 private:
  BlockReader reader_;
  SharedHeader header_{};
  std::vector<iovec> pieces_;
};

// Tells bytes apart, also those that a key had before it was deleted and stored again.
std::string etag_of(std::uint64_t checksum) {
  std::array<std::byte, sizeof checksum> bytes{};
  std::memcpy(bytes.data(), &checksum, sizeof checksum);
  return "\"" + to_hex(bytes) + "\"";
}

struct KeyRequest {
  std::shared_ptr<Cache> cache;
  BlockKey key;
  std::optional<PieceSelector> piece;
  LeaseHolder holder;      // for whom it is read
  bool is_shared = false;  // for another server's shared tier: with its header
  bool is_lent = false;    // by that server, which has it then
  std::string range;
  std::string if_range;
  std::string if_none_match;
};

// A client's token, which may read as another server does, must not have others' blocks go first.
bool is_server(const Call& call) { return call.is_admin() || call.caller->role() == Role::peer; }

// The one who asks has the block under the same name only if this cache has it in that namespace.
Result<> check_shared(const Cache& cache, std::string_view name_space, bool of_piece) {
  const CacheConfig& config = cache.config();
  if (!config.shared || shared_namespace(config) != name_space) {
    return Error{ErrorCode::state_conflict, "shared is '" + std::string(name_space) + "'; cache " +
                                                config.name + " is not shared in that namespace"};
  }
  if (of_piece) {
    return Error{ErrorCode::impossible, "shared is for whole blocks, not for a layer and outer"};
  }
  return {};
}

Result<KeyRequest> read_request(Service& service, const Call& call) {
  auto cache = cache_of(service, call);
  if (!cache) return std::move(cache).error();
  auto key = key_of(call);
  if (!key) return std::move(key).error();
  Query query(call.head.query);
  const auto piece = query.piece();
  const auto name_space = query.text("shared");
  CAIRN_TRY(query.finish());
  if (name_space) CAIRN_TRY(check_shared(**cache, *name_space, piece.has_value()));
  return KeyRequest{.cache = std::move(*cache),
                    .key = *key,
                    .piece = piece,
                    .holder = call.holder(),
                    .is_shared = name_space.has_value(),
                    .is_lent = name_space.has_value() && !call.style.head_only && is_server(call),
                    .range = std::string(call.head.range),
                    .if_range = std::string(call.head.if_range),
                    .if_none_match = std::string(call.head.if_none_match)};
}

http::Response head_of(std::string_view etag, const BlockReader& reader) {
  http::Response response;
  response.content_type = kBytesType;
  response.headers.append("ETag: ").append(etag).append("\r\nCairn-Tier: ");
  response.headers.append(to_string(reader.handle().tier));
  response.headers.append("\r\nAccept-Ranges: bytes\r\n");
  return response;
}

// What the key's copy is like, without its bytes.
void answer_head(std::string_view etag, unsigned status, const BlockReader& reader, Reply& reply) {
  http::Response response = head_of(etag, reader);
  response.status = status;
  response.announced_bytes = reader.size_bytes();
  reply.send(std::move(response));
}

// As it would stand in a shared store.
void send_shared(const KeyRequest& request, std::uint64_t checksum, BlockReader reader,
                 std::span<const iovec> pieces, Reply& reply) {
  const SharedHeader header = write_shared_header(fingerprint_of(request.cache->config().shape),
                                                  {.key = request.key,
                                                   .parent = request.cache->parent(request.key),
                                                   .size_bytes = reader.size_bytes(),
                                                   .checksum = checksum});
  http::Response response = head_of(etag_of(checksum), reader);
  response.download_bytes = header.size() + reader.size_bytes();
  response.download = std::make_unique<BlockDownload>(std::move(reader), header, pieces);
  reply.send(std::move(response));
}

void send_block(const KeyRequest& request, std::string_view etag, BlockReader reader,
                std::span<const iovec> pieces, Reply& reply) {
  const std::uint64_t total_bytes = reader.size_bytes();
  // None where it is asked for of other bytes than these (RFC 9110, 13.1.5). There is no date of
  // these bytes, and a weak tag is nobody's.
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
  response.download = std::make_unique<BlockDownload>(std::move(reader), part_of(pieces, part));
  reply.send(std::move(response));
}

// Reads the highest copy and, where it turns out to be lost, the next one. The copy was dropped
// then, so each round finds another. Who has the bytes, or asks for none, is told so without a read
// where the block's tag is known.
class KeyRead : public std::enable_shared_from_this<KeyRead> {
 public:
  KeyRead(KeyRequest request, Reply reply)
      : request_(std::move(request)), reply_(std::move(reply)) {}

  void start() {
    Cache& cache = *request_.cache;
    auto reader = request_.is_lent ? cache.lend(request_.key)
                                   : cache.read(request_.key, request_.piece, request_.holder);
    if (!reader) return reply_.error(reader.error());
    readers_.push_back(std::move(*reader));
    known_ = request_.piece ? std::nullopt : readers_.back().checksum();
    if (known_ && !request_.is_shared && answered_without_bytes(etag_of(*known_))) return;
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

  // A block's checksum is computed when it is first read and kept; a piece's, which is short, each
  // time.
  void answer(std::span<const iovec> pieces) {
    BlockReader& reader = readers_.back();
    const std::uint64_t checksum = known_ ? *known_ : checksum_of(pieces);
    if (!known_ && !request_.piece) reader.keep_checksum(checksum);
    const std::string etag = etag_of(checksum);
    if (request_.is_shared && !reply_.style().head_only) {
      return send_shared(request_, checksum, std::move(reader), pieces, reply_);
    }
    if (answered_without_bytes(etag)) return;
    send_block(request_, etag, std::move(reader), pieces, reply_);
  }

  KeyRequest request_;
  Reply reply_;
  std::optional<std::uint64_t> known_;  // the last reader's block's checksum
  // Failed ones stay until the end: this may be called by one of them.
  std::vector<BlockReader> readers_;
};

}  // namespace

void get_key(Service& service, const Call& call, Reply reply) {
  auto request = read_request(service, call);
  if (!request) return reply.error(request.error());
  std::make_shared<KeyRead>(std::move(*request), std::move(reply))->start();
}

}  // namespace cairn::routes

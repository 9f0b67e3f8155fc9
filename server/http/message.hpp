#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/passed_files.hpp"
#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "server/http/http_answer.hpp"

// Interface between the HTTP machinery (connections, parsing, timeouts) and what answers requests.
// Independent of Boost.
namespace cairn::http {

enum class Method : std::uint8_t { get, head, put, post, patch, delete_, options, other };

// "GET", "HEAD", …; "OTHER" for methods that the contract does not use.
std::string_view to_string(Method method);

// The two ends of a connection, as the kernel reports them.
struct ConnectionEnds {
  std::string local_address = {};         // numeric, without the port; empty: a Unix socket
  std::string remote = {};                // "192.0.2.7:51034"; "unix" over a Unix socket
  std::optional<std::uint32_t> uid = {};  // of the peer process on a Unix socket
};

// A request without its body. The views stay valid until its response has been sent or dropped.
struct RequestHead {
  Method method = Method::other;
  const ConnectionEnds* ends = nullptr;  // null only in tests
  // nullopt: an HTTP/1.0 request without Host. An absolute target overrides the Host field.
  std::optional<std::string_view> host = {};
  std::string_view origin;
  std::string_view sec_fetch_site;
  std::string_view traceparent;
  std::string_view path;   // as sent, up to the '?'; still percent-encoded
  std::string_view query;  // as sent, after the '?'; empty if there is none
  std::string_view content_type;
  std::string_view content_encoding;
  std::string_view accept;
  std::string_view authorization;
  std::string_view range;
  std::string_view if_range;
  std::string_view if_none_match;
  std::string_view last_event_id;
  std::optional<std::uint64_t> content_length;  // nullopt: no body, or a chunked one
  bool chunked = false;
  // The request came over a Unix socket, where access is restricted: open files may come with it
  // and go with the response.
  bool passes_files = false;
  // The connection is above the limit: only administrators and requests that
  // Session::answers_always() accepts are served on it.
  bool beyond_limit = false;
};

// Readable bytes after a collected body, without meaning (simdjson reads whole vectors).
inline constexpr std::size_t kBodyPadding = 64;

// A complete request body.
struct Body {
  // Followed by kBodyPadding readable bytes; valid as long as the head's views.
  std::span<const std::byte> bytes;
  PassedFiles files = {};  // passed with the request
  // Some files were closed on arrival, because the server holds as many as it may.
  bool files_refused = false;
};

// Source of a large response body, read piece by piece. The connection's thread calls next() until
// download_bytes are delivered, one call at a time. Destroyed when the kernel has the last
// byte or the connection is gone, so that it can hold the pins of what it reads.
class Download {
 public:
  using Pieces = Result<std::span<const iovec>>;
  virtual ~Download() = default;
  // Calls `ready` exactly once, at any time, from any thread, with at least one byte (without bytes
  // to end an endless download). The pieces must stay valid until the next call or the end of this
  // object.
  // - An error of the first call becomes the response (Handler::failed()).
  // - A later error cuts the connection, because the head has been sent: the client sees a short
  //   body, never a wrong one.
  // On another thread, do not use this object after calling `ready`: it may be destroyed.
  virtual void next(UniqueFunction<void(Pieces)> ready) = 0;
};

struct Response {
  unsigned status = 200;
  std::string_view content_type = "application/json";  // must be static
  std::string headers;  // complete lines with CRLF: "Retry-After: 1\r\n"
  std::string body;     // used if there is no download
  std::unique_ptr<Download> download;
  std::uint64_t download_bytes = 0;  // the download's length
  // The download's length is unknown. It ends, and the connection with it, when it returns no
  // pieces. Sent in chunks.
  bool endless = false;
  bool close = false;  // close the connection after this response
  // HEAD and 304: the length to announce without a body. Default: the body's length.
  std::optional<std::uint64_t> announced_bytes;
  PassedFiles files = {};  // only if the request passes_files; at most kMaxPassedFiles
};

// Answers one request.
using Responder = Answer<Response>;

// Destination of a large request body, read from the socket into place. Destroyed when the request
// ends for any reason: its guards then give back what is not finished. An exception cuts the
// connection.
class Upload {
 public:
  using Room = Result<std::span<const iovec>>;
  virtual ~Upload() = default;
  // Calls `ready` exactly once, at any time, from any thread: with room for at least one byte, or
  // with an error. The error becomes the response (Handler::failed()), and the connection is
  // closed, because the body is unread. Called again when the room is full and bytes are left. Room
  // beyond the body's end stays untouched. On another thread, do not use this object after calling
  // `ready`: it may be destroyed.
  virtual void next(UniqueFunction<void(Room)> ready) = 0;
  // Called when every byte has arrived.
  virtual void finish(Responder respond) = 0;
};

// What to do with a request's body. Decided from its head alone.
struct CollectBody {
  std::uint64_t limit_bytes = 0;  // a longer body returns 413
  // Keeps passed files for the handler; otherwise they are closed on arrival.
  bool takes_files = false;
};
using BodyPlan = std::variant<CollectBody, std::unique_ptr<Upload>, Response>;

// Status counted if a connection is lost before its response; never sent.
inline constexpr unsigned kStatusLost = 499;

struct FinishedRequest {
  const RequestHead& head;  // empty if the machinery refused the request
  unsigned status = 0;
  std::uint64_t duration_us = 0;
};

// Answers the requests of one connection, one after another, on its thread. Must not block. May
// keep what it found in a request's head until that request has ended.
class Session {
 public:
  virtual ~Session() = default;
  // Called with a request's head, which stays valid until finished(). An exception returns 500.
  // - Response: sent at once, without waiting for the body. The connection is closed afterwards,
  //   unless the rest of the body is short enough to skip.
  // - Upload: only for a request with a content_length > 0; without Content-Length the client gets
  //   411.
  // - CollectBody: handle() follows.
  virtual BodyPlan begin(const RequestHead& head) = 0;
  // Called with the collected body.
  virtual void handle(Body body, Responder respond) = 0;
  // Called once per request, when the kernel has the response or the connection was lost
  // (kStatusLost if there was no response yet). Also for requests whose head was refused, without
  // begin(). For metrics and the log.
  virtual void finished(const FinishedRequest& request) = 0;
  // Returns true if something lives as long as this connection, so that it must not be closed when
  // idle. Asked between requests.
  virtual bool stays_open() const { return false; }
  // Returns true for health checks: they are served even above the connection limit.
  virtual bool answers_always(const RequestHead&) const { return false; }
};

// Creates sessions and error responses. Called on several network threads at once. Must not block.
class Handler {
 public:
  virtual ~Handler() = default;
  // Opens the session of a new connection. An exception closes the connection.
  virtual std::unique_ptr<Session> open() = 0;
  // Formats a refusal by the HTTP machinery itself (malformed request, header or body too large,
  // timeout).
  virtual Response refuse(unsigned status, const Error& why) = 0;
  // Formats an error of an Upload or a Download.
  virtual Response failed(const Error& why) = 0;
};

}  // namespace cairn::http

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
#include "server/http/answer.hpp"

// The plain interface between the HTTP machinery (connections, parsing, time-outs) and what answers
// requests: nothing here knows of Boost.
namespace cairn::http {

enum class Method : std::uint8_t { get, head, put, post, patch, delete_, options, other };

// "GET", "HEAD", …; "OTHER" for what the contract has no use for.
std::string_view to_string(Method method);

// Who talks to whom over a connection, as the kernel tells.
struct ConnectionEnds {
  std::string local_address = {};         // numeric, without the port; empty: a Unix socket
  std::string remote = {};                // "192.0.2.7:51034"; "unix" over a Unix socket
  std::optional<std::uint32_t> uid = {};  // of the process at the other end of a Unix socket
};

// A request without its body. The views stay valid until its response has been sent or dropped.
struct RequestHead {
  Method method = Method::other;
  const ConnectionEnds* ends = nullptr;  // null: nobody's; only in tests
  // Nothing: an HTTP/1.0 request without one. That of an absolute target wins over the field's.
  std::optional<std::string_view> host = {};
  std::string_view origin;
  std::string_view sec_fetch_site;
  std::string_view traceparent;
  std::string_view path;   // as sent, up to the '?'; still percent-encoded
  std::string_view query;  // as sent, after the '?'; empty where there is none
  std::string_view content_type;
  std::string_view content_encoding;
  std::string_view accept;
  std::string_view authorization;
  std::string_view range;
  std::string_view if_range;
  std::string_view if_none_match;
  std::string_view last_event_id;
  std::optional<std::uint64_t> content_length;  // nothing: no body, or a chunked one
  bool chunked = false;
  // It came over a Unix socket, where only those connect who may: open files may have come with it,
  // and may go with the response.
  bool passes_files = false;
  // There are as many connections as there may be, and this one is beyond them: only what
  // Session::answers_always or an administrator asks for is served on it.
  bool beyond_limit = false;
};

// Bytes after a collected body that may be read but mean nothing (simdjson reads whole vectors).
inline constexpr std::size_t kBodyPadding = 64;

// All of a request's body.
struct Body {
  // Followed by kBodyPadding readable bytes; valid as long as the head's views.
  std::span<const std::byte> bytes;
  PassedFiles files = {};  // that came along
  // Some came that were closed: as many open files as the server may hold have been passed to it.
  bool files_refused = false;
};

// The bytes of a large response, pulled piece by piece. `next` is called on the connection's
// thread, never while an earlier call is unanswered, until content_length bytes have been given.
// Destroyed when the last byte has been handed to the kernel or the connection is gone: it holds
// the pins of what it reads.
class Download {
 public:
  using Pieces = Result<std::span<const iovec>>;
  virtual ~Download() = default;
  // Calls `ready` exactly once, now or later, from any thread, with at least one byte (an endless
  // one ends by giving none); the pieces
  // stay as they are until the next call or the end of this object. An error of the first call
  // becomes the response (Handler::failed); a later one cuts the connection, as the head has been
  // sent: the client sees a short body, never a wrong one. From another thread, `ready` is the last
  // thing to be done on behalf of this object: it may be destroyed at once.
  virtual void next(UniqueFunction<void(Pieces)> ready) = 0;
};

struct Response {
  unsigned status = 200;
  std::string_view content_type = "application/json";  // of static storage
  std::string headers;  // whole lines, each ended by CRLF: "Retry-After: 1\r\n"
  std::string body;     // used where there is no download
  std::unique_ptr<Download> download;
  std::uint64_t download_bytes = 0;  // the download's length
  // The download's length is not known: it ends where it gives no pieces, and the connection with
  // it. Sent in chunks.
  bool endless = false;
  bool close = false;  // end the connection after this response
  // HEAD, and 304: the length to announce without a body; else the length is the body's.
  std::optional<std::uint64_t> announced_bytes;
  PassedFiles files = {};  // only to a request that passes_files; at most kMaxPassedFiles
};

// Answers one request.
using Responder = Answer<Response>;

// Where the bytes of a large request body go, read from the socket straight into place. Destroyed
// when the request has ended in any way: its guards give back what was not finished. What it throws
// cuts the connection.
class Upload {
 public:
  using Room = Result<std::span<const iovec>>;
  virtual ~Upload() = default;
  // Calls `ready` exactly once, now or later, from any thread, with room for at least one byte, or
  // with an error that becomes the response (Handler::failed; the connection is then closed, as the
  // body was not read). Called again when the room is full and bytes are left. Room beyond the
  // body's end is not touched. From another thread, `ready` is the last thing to be done on behalf
  // of this object: it may be destroyed at once.
  virtual void next(UniqueFunction<void(Room)> ready) = 0;
  // Every byte has arrived.
  virtual void finish(Responder respond) = 0;
};

// What to do with a request's body, decided from its head alone.
struct CollectBody {
  std::uint64_t limit_bytes = 0;  // a longer one is a 413
  // Open files that come along are for the handler; without it they are closed as they come.
  bool takes_files = false;
};
using BodyPlan = std::variant<CollectBody, std::unique_ptr<Upload>, Response>;

// The status counted for a request whose connection was lost before it had a response; never sent.
inline constexpr unsigned kStatusLost = 499;

// A request that has ended.
struct FinishedRequest {
  const RequestHead& head;  // without anything where the machinery refused it
  unsigned status = 0;
  std::uint64_t duration_us = 0;
};

// What answers the requests of one connection, one after the other, on its thread: it must not
// block. It keeps what it found at a request's head until that request has ended.
class Session {
 public:
  virtual ~Session() = default;
  // The head has been read, and stays until finished(). A Response here is sent at once and the
  // body is not waited for: the connection is closed after it unless the body is short enough to be
  // skipped. An Upload must only be returned for a request with a content_length > 0; for one
  // without the client is told 411. What it throws is answered with 500.
  virtual BodyPlan begin(const RequestHead& head) = 0;
  // The body was collected.
  virtual void handle(Body body, Responder respond) = 0;
  // A response has been handed to the kernel or its connection was lost (kStatusLost where there
  // was no response yet). Once a request, also for one whose head was refused and that never began.
  // For metrics and the log.
  virtual void finished(const FinishedRequest& request) = 0;
  // Something lives as long as this connection: it is not closed for being idle. Asked for when its
  // last request has been answered.
  virtual bool stays_open() const { return false; }
  // Whether the server lives: served also where there are too many connections.
  virtual bool answers_always(const RequestHead&) const { return false; }
};

// What answers requests. Called on network threads, several at once: it must not block.
class Handler {
 public:
  virtual ~Handler() = default;
  // For a new connection. What it throws closes that.
  virtual std::unique_ptr<Session> open() = 0;
  // A request the HTTP machinery itself refused (malformed, too long a header, time-out, too long a
  // body): how the refusal looks.
  virtual Response refuse(unsigned status, const Error& why) = 0;
  // How an error of an Upload or a Download looks.
  virtual Response failed(const Error& why) = 0;
};

}  // namespace cairn::http

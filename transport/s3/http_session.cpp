#include "transport/s3/http_session.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <new>
#include <utility>

#include "base/assert.hpp"
#include "base/pieces.hpp"

namespace cairn {
namespace {

using std::chrono::milliseconds;

// As large as libcurl allows: fewer calls for each MiB.
constexpr long kReceiveBytes = 512 * 1024;
constexpr long kSendBytes = 2 * 1024 * 1024;
// A request ends after this many time-outs, and the time that its bytes take at the slowest pace.
// An occasional byte gains nothing.
constexpr std::uint64_t kTimeouts = 6;
constexpr std::uint64_t kSlowestBytesPerMs = 256;

// SHA-256 of nothing. The body of a put is not hashed for the signature: each value has a checksum
// that its reader compares, and TLS protects what is on its way.
constexpr const char* kHashOfNothing =
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr const char* kHashOfNoInterest = "x-amz-content-sha256: UNSIGNED-PAYLOAD";

// A place in a list of pieces.
struct Cursor {
  std::size_t piece = 0;
  std::size_t offset = 0;

  // Moves over up to `bytes` bytes of the current piece. Returns them; empty at the end.
  iovec next(const std::vector<iovec>& pieces, std::size_t bytes) {
    while (piece < pieces.size() && offset == pieces[piece].iov_len) {
      ++piece;
      offset = 0;
    }
    if (piece == pieces.size()) return {};
    const iovec& at = pieces[piece];
    const std::size_t count = std::min(bytes, at.iov_len - offset);
    auto* const base = static_cast<std::byte*>(at.iov_base);
    const iovec found{base == nullptr ? nullptr : base + offset, count};
    offset += count;
    return found;
  }
};

struct FreeHeaders {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
struct CloseEasy {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct CloseMulti {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};

struct Running {
  HttpSession::Request request;
  UniqueFunction<void(HttpSession::Response)> done;
  HttpSession::Response response = {};
  Cursor sent = {};
  Cursor received = {};
  std::uint64_t left_bytes = 0;  // of `into`
  bool too_long = false;
  std::array<char, CURL_ERROR_SIZE> error{};
  std::unique_ptr<curl_slist, FreeHeaders> headers = {};
  std::unique_ptr<CURL, CloseEasy> easy = {};

  bool fills_memory() const {
    long status = 0;
    curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
    return !request.into.empty() && (status == 200 || status == 206);
  }
};

std::size_t receive(char* bytes, std::size_t, std::size_t count, void* context) {
  Running& running = *static_cast<Running*>(context);
  if (!running.fills_memory()) {
    std::string& text = running.response.text;
    text.append(bytes, std::min(count, HttpSession::kMaxTextBytes - text.size()));
    running.too_long = text.size() == HttpSession::kMaxTextBytes;
    return running.too_long ? 0 : count;
  }
  std::size_t done = 0;
  while (done < count) {
    const iovec room = running.received.next(running.request.into, count - done);
    if (room.iov_len == 0) break;
    if (room.iov_base != nullptr) std::memcpy(room.iov_base, bytes + done, room.iov_len);
    done += room.iov_len;
  }
  running.left_bytes -= done;
  running.too_long = done < count;
  return done;  // fewer than `count` end the request
}

std::size_t send(char* bytes, std::size_t, std::size_t count, void* context) {
  Running& running = *static_cast<Running*>(context);
  std::size_t done = 0;
  while (done < count) {
    const iovec piece = running.sent.next(running.request.body, count - done);
    if (piece.iov_len == 0) break;
    std::memcpy(bytes + done, piece.iov_base, piece.iov_len);
    done += piece.iov_len;
  }
  return done;
}

// libcurl starts again if a kept connection turns out to be closed.
int rewind(void* context, curl_off_t offset, int origin) {
  if (offset != 0 || origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
  static_cast<Running*>(context)->sent = {};
  return CURL_SEEKFUNC_OK;
}

}  // namespace

struct HttpSession::State {
  explicit State(Settings given) : settings(std::move(given)), multi(curl_multi_init()) {
    if (multi == nullptr) throw std::bad_alloc();
    curl_multi_setopt(multi.get(), CURLMOPT_MAX_TOTAL_CONNECTIONS,
                      static_cast<long>(settings.connections));
    curl_multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS, static_cast<long>(settings.connections));
  }

  void set_up(Running& running) const {
    CURL* const easy = running.easy.get();
    const Request& request = running.request;
    const auto set = [easy](CURLoption option, auto value) {
      const CURLcode code = curl_easy_setopt(easy, option, value);
      CAIRN_ASSERT(code != CURLE_UNKNOWN_OPTION, "libcurl lacks an option");
    };
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_NOSIGNAL, 1L);
    // One connection for each request: over HTTP/2 all would share one.
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_ERRORBUFFER, running.error.data());
    set(CURLOPT_BUFFERSIZE, kReceiveBytes);
    set(CURLOPT_UPLOAD_BUFFERSIZE, kSendBytes);
    const std::uint64_t bytes = total_bytes(request.body) + total_bytes(request.into);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings.timeout_ms));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>((settings.timeout_ms + 999) / 1000));
    set(CURLOPT_TIMEOUT_MS,
        static_cast<long>(settings.timeout_ms * kTimeouts + bytes / kSlowestBytesPerMs));
    if (!settings.ca.empty()) set(CURLOPT_CAINFO, settings.ca.c_str());
    if (!settings.proxy.empty()) set(CURLOPT_PROXY, settings.proxy.c_str());
    set(CURLOPT_WRITEFUNCTION, &receive);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&running));
    set(CURLOPT_PRIVATE, static_cast<void*>(&running));
    const auto add = [&running](const std::string& header) {
      curl_slist* const list = curl_slist_append(running.headers.get(), header.c_str());
      if (list == nullptr) throw std::bad_alloc();
      static_cast<void>(running.headers.release());
      running.headers.reset(list);
    };
    for (const std::string& header : request.headers) add(header);
    if (const Signature& signature = request.signature; !signature.key_id.empty()) {
      add(request.verb == Verb::put ? kHashOfNoInterest : kHashOfNothing);
      if (!signature.token.empty()) add("x-amz-security-token: " + signature.token);
      set(CURLOPT_AWS_SIGV4, signature.scope.c_str());
      set(CURLOPT_USERNAME, signature.key_id.c_str());
      set(CURLOPT_PASSWORD, signature.secret.c_str());
    }
    if (request.verb == Verb::put) {
      add("Expect:");
      set(CURLOPT_UPLOAD, 1L);
      set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(total_bytes(request.body)));
      set(CURLOPT_READFUNCTION, &send);
      set(CURLOPT_READDATA, static_cast<void*>(&running));
      set(CURLOPT_SEEKFUNCTION, &rewind);
      set(CURLOPT_SEEKDATA, static_cast<void*>(&running));
    } else if (request.verb == Verb::remove) {
      set(CURLOPT_CUSTOMREQUEST, "DELETE");
    }
    set(CURLOPT_HTTPHEADER, running.headers.get());
  }

  void ended(Running& running, CURLcode code) {
    Response& response = running.response;
    curl_easy_getinfo(running.easy.get(), CURLINFO_RESPONSE_CODE, &response.status);
    response.is_whole = code == CURLE_OK && running.left_bytes == 0;
    if (code != CURLE_OK) {
      // A body that was cut or too long is no response, but the status tells why it came.
      const bool is_too_long = code == CURLE_WRITE_ERROR && running.too_long;
      response.error = is_too_long                ? "the body is longer than requested"
                       : running.error[0] != '\0' ? running.error.data()
                                                  : curl_easy_strerror(code);
      if (!is_too_long) response.status = 0;
    }
    end(running, std::move(response));
  }

  // Nothing touches the request's memory any more. Its `done` may start others.
  void end(Running& running, Response response) {
    curl_multi_remove_handle(multi.get(), running.easy.get());
    const auto at = std::ranges::find_if(all, [&](const Running& one) { return &one == &running; });
    std::list<Running> mine;
    mine.splice(mine.end(), all, at);
    running.done(std::move(response));
  }

  const Settings settings;
  const std::unique_ptr<CURLM, CloseMulti> multi;
  std::list<Running> all;  // destroyed before `multi`
};

HttpSession::HttpSession(Settings settings)
    : state_(std::make_unique<State>(std::move(settings))) {}

HttpSession::~HttpSession() {
  for (Running& running : state_->all) {
    curl_multi_remove_handle(state_->multi.get(), running.easy.get());
  }
}

void HttpSession::start(Request request, UniqueFunction<void(Response)> done) {
  Running& running =
      state_->all.emplace_back(Running{.request = std::move(request), .done = std::move(done)});
  running.left_bytes = total_bytes(running.request.into);
  running.easy.reset(curl_easy_init());
  if (running.easy == nullptr) throw std::bad_alloc();
  state_->set_up(running);
  curl_multi_add_handle(state_->multi.get(), running.easy.get());
}

std::size_t HttpSession::in_progress() const { return state_->all.size(); }

void HttpSession::poll(milliseconds at_most) {
  CURLM* const multi = state_->multi.get();
  int running = 0;
  curl_multi_perform(multi, &running);
  int left = 0;
  bool has_ended = false;
  while (const CURLMsg* const message = curl_multi_info_read(multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    has_ended = true;
    Running* ended = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &ended);
    state_->ended(*ended, message->data.result);
  }
  // A request that has ended may start others.
  if (!has_ended) {
    curl_multi_poll(multi, nullptr, 0, static_cast<int>(at_most.count()), nullptr);
  }
}

void HttpSession::wake() { curl_multi_wakeup(state_->multi.get()); }

void HttpSession::cancel_all(const std::string& why) {
  while (!state_->all.empty()) state_->end(state_->all.front(), {.error = why});
}

}  // namespace cairn

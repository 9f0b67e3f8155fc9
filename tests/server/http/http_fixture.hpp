#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "server/http/http_server.hpp"
#include "tests/base/eventually.hpp"
#include "tests/fakes/manual_clock.hpp"
#include "tests/server/http/scripted_bodies.hpp"
#include "tests/server/http/socket_client.hpp"

namespace cairn::http::testing {

inline Response text_response(unsigned status, std::string body) {
  Response response;
  response.status = status;
  response.content_type = "text/plain";
  response.body = std::move(body);
  return response;
}

// A request with its body, as the tests see it.
struct Request : RequestHead {
  std::span<const std::byte> body;
  PassedFiles files = {};
  bool files_refused = false;
};

inline std::string body_text(const Request& request) {
  return {reinterpret_cast<const char*>(request.body.data()), request.body.size()};
}

struct Finished {
  Method method;
  std::string path;
  unsigned status;
};

// Does what a test sets. A connection that requested /stay stays open, and /alive always gets a
// response. By default it collects bodies of up to 1 MiB with their files, and responds with
// "METHOD path?query body".
class TestHandler final : public Handler {
 public:
  std::function<BodyPlan(const RequestHead&)> on_begin = [](const RequestHead& head) -> BodyPlan {
    if (head.beyond_limit && head.path != "/alive") return text_response(503, "too many");
    return CollectBody{.limit_bytes = 1024 * 1024, .takes_files = true};
  };
  std::function<void(const Request&, Responder)> on_handle =
      [](const Request& request, Responder respond) { respond(echo(request)); };

  static Response echo(const Request& request) {
    Response response = text_response(
        200, std::string(to_string(request.method)) + " " + std::string(request.path) + "?" +
                 std::string(request.query) + " " + body_text(request));
    return response;
  }

  std::unique_ptr<Session> open() override { return std::make_unique<TestSession>(*this); }
  // If true, refuse() and finished() throw std::bad_alloc.
  std::atomic<bool> has_no_memory{false};

  Response refuse(unsigned status, const Error& why) override {
    if (has_no_memory) throw std::bad_alloc();
    return text_response(status, "refused: " + why.detail);
  }
  Response failed(const Error& why) override { return text_response(507, "failed: " + why.detail); }
  std::vector<Finished> all_finished() const {
    MutexLock lock(mutex_);
    return finished_;
  }

 private:
  class TestSession final : public Session {
   public:
    explicit TestSession(TestHandler& handler) : handler_(handler) {}
    BodyPlan begin(const RequestHead& head) override {
      head_ = &head;
      stays_ = stays_ || head.path == "/stay";
      return handler_.on_begin(head);
    }
    void handle(Body body, Responder respond) override {
      handler_.on_handle({*head_, body.bytes, std::move(body.files), body.files_refused},
                         std::move(respond));
    }
    void finished(const FinishedRequest& request) override {
      MutexLock lock(handler_.mutex_);
      handler_.finished_.push_back(
          {request.head.method, std::string(request.head.path), request.status});
      if (handler_.has_no_memory) throw std::bad_alloc();
    }

    bool stays_open() const override { return stays_; }
    bool answers_always(const RequestHead& head) const override { return head.path == "/alive"; }

   private:
    TestHandler& handler_;
    const RequestHead* head_ = nullptr;
    bool stays_ = false;
  };

  mutable Mutex mutex_;
  std::vector<Finished> finished_ CAIRN_GUARDED_BY(mutex_);
};

// A server on a free port, with a clock that the test moves.
class HttpTest : public ::testing::Test {
 protected:
  ~HttpTest() override { server_.reset(); }

  void start() {
    auto server = HttpServer::start(listen_, limits_, handler_, clock_, log_);
    ASSERT_TRUE(server) << server.error().detail;
    server_ = *std::move(server);
  }
  SocketClient connect() { return SocketClient::tcp(server_->port()); }
  // Waits until the server has read that many bytes in total.
  bool received(std::uint64_t bytes) {
    return eventually([&] { return server_->stats().bytes_received >= bytes; });
  }
  // Returns the next response. The clock advances in steps until it arrives, because the server may
  // set a deadline a moment after it counted the bytes before it.
  ClientResponse receive_in_time(SocketClient& client, std::uint32_t step_ms) {
    std::atomic<bool> answered{false};
    std::thread time([&] {
      while (!answered) {
        clock_.advance_ms(step_ms);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    ClientResponse response = client.receive();
    answered = true;
    time.join();
    return response;
  }
  // Waits until the server has checked its connections' deadlines at least once since the call.
  bool has_ticked() {
    server_->is_alive();
    return eventually([&] { return server_->is_alive(); });
  }
  // Waits until that many requests have finished, a moment after the client gets its response.
  bool finished(std::size_t requests) {
    return eventually([&] { return handler_.all_finished().size() == requests; });
  }
  bool none_open() {
    return eventually([&] { return server_->stats().connections_open == 0; });
  }

  // Memory that outlives the server. The server may still use it a moment after its client has
  // received everything.
  Scattered& memory(const std::vector<std::size_t>& piece_bytes, char fill = 0) {
    return memory_.emplace_back(piece_bytes, fill);
  }

  std::deque<Scattered> memory_;
  FileDescriptor dev_null_{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  fakes::ManualClock clock_;
  Logger log_{clock_, dev_null_.get(), LogLevel::info};
  ListenConfig listen_{"127.0.0.1", 0, "", {}};
  HttpLimits limits_;
  TestHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace cairn::http::testing

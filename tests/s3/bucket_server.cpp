#include "tests/s3/bucket_server.hpp"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cstdlib>
#include <list>
#include <thread>

namespace cairn::testing {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr std::size_t kPageKeys = 3;  // so that listings have several pages
const std::string kBucket = "/tests/";

std::string decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
    i += 2;
  }
  return out;
}

std::string field_of(const std::string& query, const std::string& name) {
  const std::size_t at = query.find(name + "=");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 1;
  return decoded(std::string_view(query).substr(begin, query.find('&', begin) - begin));
}

std::string error_xml(const std::string& code) {
  return R"(<?xml version="1.0" encoding="UTF-8"?><Error><Code>)" + code +
         "</Code><Message>a test</Message></Error>";
}

}  // namespace

struct BucketServer::State {
  mutable std::mutex mutex;
  std::map<std::string, std::string> objects;
  std::vector<Request> requests;
  Faults faults;
  asio::io_context io;
  std::uint16_t port = 0;
  std::unique_ptr<tcp::acceptor> acceptor;
  std::list<std::shared_ptr<tcp::socket>> sockets;
  std::list<std::thread> threads;
  std::thread accepting;

  void serve(const std::shared_ptr<tcp::socket>& socket) {
    boost::beast::flat_buffer buffer;
    boost::system::error_code error;
    while (!error) {
      http::request_parser<http::string_body> parser;
      parser.body_limit(1u << 30);
      http::read(*socket, buffer, parser, error);
      if (!error) answer(*socket, parser.release(), error);
    }
    socket->shutdown(tcp::socket::shutdown_both, error);
  }

  void answer(tcp::socket& socket, http::request<http::string_body> request,
              boost::system::error_code& error) {
    const std::string target(request.target());
    const std::size_t question = target.find('?');
    const std::string path = target.substr(0, question);
    const std::string query = question == std::string::npos ? "" : target.substr(question + 1);
    Request noted{.verb = std::string(request.method_string()),
                  .key = path.substr(std::min(path.size(), kBucket.size())),
                  .query = query,
                  .range = std::string(request[http::field::range]),
                  .key_id = key_id_of(std::string(request[http::field::authorization])),
                  .token = std::string(request["x-amz-security-token"])};
    std::optional<Fault> fault;
    http::response<http::string_body> response;
    {
      const std::lock_guard lock(mutex);
      requests.push_back(noted);
      if (faults) fault = faults(noted);
    }
    if (fault && fault->status != 0) {
      response.result(static_cast<unsigned>(fault->status));
      response.body() = fault->body.empty() ? error_xml(fault->code) : fault->body;
    } else if (noted.key_id.empty()) {
      response.result(http::status::forbidden);
      response.body() = error_xml("AccessDenied");
    } else {
      const std::lock_guard lock(mutex);
      act(noted, query, request, response);
    }
    response.prepare_payload();
    if (fault && fault->flip_at && *fault->flip_at < response.body().size()) {
      response.body()[*fault->flip_at] ^= 1;
    }
    if (fault && fault->cut_after) {
      http::response_serializer<http::string_body> serializer(response);
      serializer.split(true);
      http::write_header(socket, serializer, error);
      const std::size_t bytes = std::min(*fault->cut_after, response.body().size());
      asio::write(socket, asio::buffer(response.body().data(), bytes), error);
      error = asio::error::connection_aborted;
      return;
    }
    http::write(socket, response, error);
  }

  static std::string key_id_of(const std::string& authorization) {
    const std::string begin = "AWS4-HMAC-SHA256 Credential=";
    if (!authorization.starts_with(begin)) return {};
    return authorization.substr(begin.size(), authorization.find('/') - begin.size());
  }

  void act(const Request& noted, const std::string& query,
           http::request<http::string_body>& request, http::response<http::string_body>& response) {
    if (noted.key.empty()) return list(query, response);
    if (noted.verb == "PUT") {
      objects[noted.key] = std::move(request.body());
    } else if (noted.verb == "DELETE") {
      objects.erase(noted.key);
      response.result(http::status::no_content);
    } else if (const auto object = objects.find(noted.key); object == objects.end()) {
      response.result(http::status::not_found);
      response.body() = error_xml("NoSuchKey");
    } else {
      get(object->second, noted.range, response);
    }
  }

  static void get(const std::string& object, const std::string& range,
                  http::response<http::string_body>& response) {
    const std::size_t equals = range.find('=');
    const std::size_t dash = range.find('-');
    const std::size_t first = std::stoull(range.substr(equals + 1));
    const std::size_t last = std::stoull(range.substr(dash + 1));
    if (first >= object.size()) {
      response.result(http::status::range_not_satisfiable);
      response.body() = error_xml("InvalidRange");
      return;
    }
    response.result(http::status::partial_content);
    response.body() = object.substr(first, last - first + 1);
  }

  void list(const std::string& query, http::response<http::string_body>& response) const {
    const std::string prefix = field_of(query, "prefix");
    auto at = objects.upper_bound(std::max(field_of(query, "start-after"), prefix));
    std::string body = "<ListBucketResult>";
    std::size_t count = 0;
    for (; at != objects.end() && count < kPageKeys; ++at) {
      if (!at->first.starts_with(prefix)) break;
      ++count;
      body += "<Contents><Key>" + at->first + "</Key><Size>" + std::to_string(at->second.size()) +
              "</Size></Contents>";
    }
    const bool has_more = at != objects.end() && at->first.starts_with(prefix);
    body += std::string("<IsTruncated>") + (has_more ? "true" : "false") +
            "</IsTruncated></ListBucketResult>";
    response.body() = body;
  }
};

BucketServer::BucketServer() : state_(std::make_unique<State>()) {
  set_keys();
  start();
}

BucketServer::~BucketServer() { stop(); }

void BucketServer::set_keys() {
  ::setenv("AWS_ACCESS_KEY_ID", "the-key", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "the-secret", 1);
  ::unsetenv("AWS_SESSION_TOKEN");
}

void BucketServer::remove_keys() {
  ::unsetenv("AWS_ACCESS_KEY_ID");
  ::unsetenv("AWS_SECRET_ACCESS_KEY");
}

std::string BucketServer::url() const {
  return "http://127.0.0.1:" + std::to_string(state_->port) + "/tests";
}

S3Settings BucketServer::settings(const std::string& writer) const {
  return {.endpoint = "http://127.0.0.1:" + std::to_string(state_->port),
          .bucket = "tests",
          .prefix = "cairn/v1",
          .timeout_ms = 30'000,
          .linger_ms = 20,
          .poll_ms = 50,
          .writer = writer};
}

void BucketServer::start() {
  State& state = *state_;
  state.acceptor = std::make_unique<tcp::acceptor>(
      state.io, tcp::endpoint(asio::ip::address_v4::loopback(), state.port));
  state.port = state.acceptor->local_endpoint().port();
  state.accepting = std::thread([&state] {
    while (true) {
      const auto socket = std::make_shared<tcp::socket>(state.io);
      boost::system::error_code error;
      state.acceptor->accept(*socket, error);
      if (error) return;
      const std::lock_guard lock(state.mutex);
      state.sockets.push_back(socket);
      state.threads.emplace_back([&state, socket] { state.serve(socket); });
    }
  });
}

void BucketServer::stop() {
  State& state = *state_;
  if (!state.accepting.joinable()) return;
  ::shutdown(state.acceptor->native_handle(), SHUT_RDWR);
  state.accepting.join();
  state.acceptor.reset();
  std::list<std::thread> threads;
  {
    const std::lock_guard lock(state.mutex);
    for (const auto& socket : state.sockets) ::shutdown(socket->native_handle(), SHUT_RDWR);
    threads = std::exchange(state.threads, {});
  }
  for (std::thread& thread : threads) thread.join();
  state.sockets.clear();
}

void BucketServer::set_faults(Faults faults) {
  const std::lock_guard lock(state_->mutex);
  state_->faults = std::move(faults);
}

std::map<std::string, std::string> BucketServer::objects() const {
  const std::lock_guard lock(state_->mutex);
  return state_->objects;
}

std::map<std::string, std::string> BucketServer::packed() const {
  auto packed = objects();
  std::erase_if(packed,
                [](const auto& one) { return one.first.find("/uses/") != std::string::npos; });
  return packed;
}

std::size_t BucketServer::uploads() const {
  const auto all = requests();
  return static_cast<std::size_t>(std::ranges::count_if(all, &Request::puts_values));
}

void BucketServer::put(const std::string& key, std::string bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->objects[key] = std::move(bytes);
}

void BucketServer::remove(const std::string& key) {
  const std::lock_guard lock(state_->mutex);
  state_->objects.erase(key);
}

std::vector<BucketServer::Request> BucketServer::requests() const {
  const std::lock_guard lock(state_->mutex);
  return state_->requests;
}

std::size_t BucketServer::count(const std::string& verb) const {
  const auto all = requests();
  return static_cast<std::size_t>(
      std::ranges::count_if(all, [&](const Request& one) { return one.verb == verb; }));
}

}  // namespace cairn::testing

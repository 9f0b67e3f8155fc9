#pragma once

#include <zmq.h>

#include <string>
#include <vector>

#include "tests/e2e/support/rest.hpp"
#include "tests/e2e/support/test_blocks.hpp"

namespace cairn::e2e {

// A ZeroMQ socket that connects to the server's.
class ZmqPeer {
 public:
  ZmqPeer(int kind, const std::string& endpoint)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, kind)) {
    const int timeout_ms = 20'000;
    const int linger_ms = 0;
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    if (kind == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "kv", 2);
    zmq_connect(socket_, endpoint.c_str());
  }
  ~ZmqPeer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  ZmqPeer(const ZmqPeer&) = delete;
  ZmqPeer& operator=(const ZmqPeer&) = delete;

  void send(const std::vector<std::string>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      zmq_send(socket_, frames[i].data(), frames[i].size(),
               i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    }
  }
  // The frames of the next message; empty if none comes.
  std::vector<std::string> receive() { return receive(0); }
  // The same without waiting.
  std::vector<std::string> receive_now() { return receive(ZMQ_DONTWAIT); }

 private:
  std::vector<std::string> receive(int flags) {
    std::vector<std::string> frames;
    int more = 1;
    while (more != 0) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, flags) < 0) return {};
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return frames;
  }

  void* context_;
  void* socket_;
};

// A key in the form of an event over ZeroMQ.
inline json bytes_of(const std::string& hex) {
  const std::string bytes = from_hex(hex);
  return json::binary({bytes.begin(), bytes.end()});
}

}  // namespace cairn::e2e

#pragma once

#include <cstdint>

#include "server/routes/reply.hpp"
#include "server/routes/service.hpp"

namespace cairn::routes {

struct WhenEnded {
  TransferId id;
  std::uint32_t wait_ms = 0;
  unsigned status_unfinished = 200;  // what a transfer that goes on is answered with
  bool starts_it = false;            // one that a full queue kept from beginning is then refused
};

// Answers with the transfer's state once it has ended, or after the wait.
void answer_when_ended(Service& service, const WhenEnded& when, Reply reply);

}  // namespace cairn::routes

#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "server/http/message.hpp"
#include "server/routes/service.hpp"

namespace cairn {

// Serves the contract's routes: finds the handler of each request, chooses how its body is
// received, counts the request and logs it. Thread-safe.
class ApiHandler final : public http::Handler {
 public:
  // The labels under which HttpCounters counts requests. Static storage.
  static std::span<const std::string_view> route_labels();
  static std::span<const std::string_view> method_labels();

  // Borrows the service.
  explicit ApiHandler(Service& service) : service_(service) {}

  std::unique_ptr<http::Session> open() override;
  http::Response refuse(unsigned status, const Error& why) override;
  http::Response failed(const Error& why) override;

 private:
  Service& service_;
};

}  // namespace cairn

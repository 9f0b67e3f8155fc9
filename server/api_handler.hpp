#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "server/http/message.hpp"
#include "server/routes/service.hpp"

namespace cairn {

// The contract's routes behind the HTTP machinery: finds the handler of a request, says what
// happens to its body, counts and logs it. Thread-safe.
class ApiHandler final : public http::Handler {
 public:
  // The labels under which requests are counted, for HttpCounters; of static storage.
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

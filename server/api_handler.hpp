#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "server/http/message.hpp"
#include "server/routes/service.hpp"
#include "server/routes/table.hpp"
#include "server/routing/router.hpp"

namespace cairn {

// The contract's routes behind the HTTP machinery: finds the handler of a request, says what
// happens to its body, counts and logs it. Thread-safe.
class ApiHandler final : public http::Handler {
 public:
  // The labels under which requests are counted, for HttpCounters; of static storage.
  static std::span<const std::string_view> route_labels();
  static std::span<const std::string_view> method_labels();

  // Borrows the service.
  explicit ApiHandler(Service& service);

  http::RequestPlan begin(const http::RequestHead& head) override;
  void handle(const http::Request& request, http::Responder respond) override;
  http::Response refuse(unsigned status, const Error& why) override;
  http::Response failed(const Error& why) override;
  void finished(const http::FinishedRequest& request) override;

 private:
  http::BodyPlan plan_body(const http::RequestHead& head, const Router::Match& found,
                           const Caller* caller);
  // Who asks, and whether that one may; null where anybody may.
  Result<std::shared_ptr<const Caller>> admit(const http::RequestHead& head,
                                              const Router::Match& found) const;
  http::Response no_route(const http::RequestHead& head) const;
  // Who changed what, or tried to.
  void audit(const http::FinishedRequest& request) const;

  Service& service_;
};

}  // namespace cairn

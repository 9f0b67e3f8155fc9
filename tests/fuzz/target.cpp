// A request's target: the path's route and parameters, and the query's parameters.
#include "blockmgr/index/cache_name.hpp"
#include "server/codec/ids.hpp"
#include "server/codec/query.hpp"
#include "server/routing/router.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using cairn::http::Method;

// One pattern for each form of the API's paths.
constexpr cairn::RoutePattern kPatterns[] = {
    {Method::get, "/"},
    {Method::get, "/metrics"},
    {Method::get, "/v1/caches"},
    {Method::put, "/v1/caches/{cache}"},
    {Method::post, "/v1/caches/{cache}/match"},
    {Method::put, "/v1/caches/{cache}/slots/{tier}/{slot}/data"},
    {Method::get, "/v1/caches/{cache}/keys/{key}"},
    {Method::get, "/v1/caches/{cache}/keys/{key}/metadata"},
    {Method::delete_, "/v1/leases/{lease}"},
    {Method::get, "/v1/transfers/{transfer}"},
};

const cairn::Router& router() {
  static const cairn::Router router(kPatterns);
  return router;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cairn::fuzz::Input input(data, size);
  const auto method = static_cast<cairn::http::Method>(input.byte() % 7);
  const std::string_view target = input.text();
  const std::size_t mark = target.find('?');
  const std::string_view path = target.substr(0, mark);
  if (const auto found = router().find(method, path)) {
    for (std::size_t i = 0; i < cairn::PathParameters::kMax; ++i) {
      const std::string_view name = found->parameters[i];
      cairn::fuzz::must(name.size() <= path.size(), "a parameter longer than its path");
      if (const auto key = cairn::key_from(name, "key")) {
        cairn::fuzz::must(cairn::key_text(key->view()).size() == name.size(), "a key changed");
      }
      if (const auto lease = cairn::lease_from(name)) {
        cairn::fuzz::must(cairn::lease_from(cairn::lease_text(*lease)) == *lease,
                          "a lease changed");
      }
      if (const auto transfer = cairn::transfer_from(name)) {
        cairn::fuzz::must(cairn::transfer_from(cairn::transfer_text(*transfer)) == *transfer,
                          "a transfer's name changed");
      }
      if (cairn::is_cache_name(name)) {
        cairn::fuzz::must(name.find('/') == name.npos && name != ".." && name != ".",
                          "a cache's name is a path");
      }
    }
  } else {
    static_cast<void>(router().explain(path));
  }
  if (mark == target.npos) return 0;
  cairn::Query query(target.substr(mark + 1));
  static_cast<void>(query.text("cache"));
  static_cast<void>(query.key("parent"));
  static_cast<void>(query.tier("tier"));
  if (const auto number = query.number("limit", {1, 1000})) {
    cairn::fuzz::must(*number >= 1 && *number <= 1000, "a number out of its bounds");
  }
  static_cast<void>(query.flag("force"));
  static_cast<void>(query.part());
  static_cast<void>(query.finish());
  return 0;
}

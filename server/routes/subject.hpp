#pragma once

#include "base/result.hpp"
#include "server/auth/caller.hpp"
#include "server/routes/service.hpp"
#include "server/routes/table.hpp"

namespace cairn::routes {

// forbidden where the request is about a cache that the caller may not touch. What is not here at
// all passes: its handler says so.
Result<> check_subject(const Service& service, const Caller& caller, const Route& route,
                       const PathParameters& path);

}  // namespace cairn::routes

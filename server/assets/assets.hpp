#pragma once

#include <string_view>

// Files that the program carries in itself; assets.cpp is made of them at build time.
namespace cairn::assets {

extern const std::string_view kOpenapi;     // openapi.json
extern const std::string_view kStatusPage;  // status.html

}  // namespace cairn::assets

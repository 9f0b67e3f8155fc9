#pragma once

#include <string_view>

// Files that the program carries in itself; assets.cpp is made of them at build time.
namespace cairn::assets {

extern const std::string_view kOpenapi;     // openapi.json
extern const std::string_view kStatusPage;  // status.html
extern const std::string_view kRunbooks;    // docs/operation.md
// SHA-256 in base64 of what is between its one <style> and its one <script>, by which a browser
// knows them (Content-Security-Policy).
extern const std::string_view kStatusPageStyleDigest;
extern const std::string_view kStatusPageScriptDigest;

}  // namespace cairn::assets

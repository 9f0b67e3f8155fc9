#pragma once

#include <string_view>

// Files embedded in the program. The build makes assets.cpp from them.
namespace cairn::assets {

extern const std::string_view kOpenapi;     // openapi.json
extern const std::string_view kStatusPage;  // status.html
extern const std::string_view kRunbooks;    // docs/operation.md
extern const std::string_view kParts;       // parts.json: the table of docs/parts.md
// SHA-256, in base64, of the content of the page's <style> and <script>, for its
// Content-Security-Policy.
extern const std::string_view kStatusPageStyleDigest;
extern const std::string_view kStatusPageScriptDigest;

}  // namespace cairn::assets

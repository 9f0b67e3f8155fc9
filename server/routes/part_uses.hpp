#pragma once

#include <string_view>

#include "server/codec/document.hpp"

namespace cairn {

// The parts of docs/parts.md that have a statistic, with their use since the start, by id. Reads it
// from the text of the metrics. A part that not every machine can use names what it needs.
ordered_json parts_body(std::string_view metrics);

}  // namespace cairn

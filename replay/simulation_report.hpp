#pragma once

#include <iosfwd>

#include "replay/simulation.hpp"

namespace cairn::replay {

// Hit rates in per cent, one row per policy and one column per capacity.
void print_table(std::ostream& out, const SimulationOutcome& outcome);

// The same as a JSON object, with rates from 0 to 1, and a newline.
void print_json(std::ostream& out, const SimulationOutcome& outcome);

// The same as an SVG: one line per policy, over capacities on a logarithmic axis.
void draw(std::ostream& out, const SimulationOutcome& outcome);

}  // namespace cairn::replay

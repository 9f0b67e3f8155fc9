#pragma once

#include <iosfwd>

#include "replay/simulation.hpp"

namespace cairn::replay {

// Hit rates in per cent, a row a policy and a column a capacity.
void print_table(std::ostream& out, const SimulationOutcome& outcome);

// The same as a JSON object, with rates from 0 to 1, and a newline.
void print_json(std::ostream& out, const SimulationOutcome& outcome);

// The same as an SVG: a line a policy, over capacities on a logarithmic axis.
void draw(std::ostream& out, const SimulationOutcome& outcome);

}  // namespace cairn::replay

#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "replay/driver.hpp"

namespace cairn::replay {

// Why a replay does not count as passed, one sentence per reason; empty if it passed. The counts of
// a cache that others use too may differ.
std::vector<std::string> faults_of(const Outcome& outcome);

// The result for a person.
void print_report(std::ostream& out, Outcome& outcome);

// The result for a program: one JSON object and a newline.
void print_json(std::ostream& out, Outcome& outcome, const std::vector<std::string>& messages);

}  // namespace cairn::replay

#pragma once

// Every snippet includes this. A snippet's first line gives the compiler's message, as a regular
// expression that matches for g++ and clang++.

#include "layouts/builder.hpp"

inline const cairn::LayoutConfig kShape{.num_blocks = 1,
                                        .num_layers = 1,
                                        .outer_dim = 1,
                                        .page_size = 1,
                                        .inner_dim = 1,
                                        .dtype_width_bytes = 1};

#pragma once

// What every snippet here has at hand. A snippet's first line says what the compiler must answer,
// as a regular expression that g++ and clang++ both match.

#include "layouts/builder.hpp"

inline const cairn::LayoutConfig kShape{.num_blocks = 1,
                                        .num_layers = 1,
                                        .outer_dim = 1,
                                        .page_size = 1,
                                        .inner_dim = 1,
                                        .dtype_width_bytes = 1};

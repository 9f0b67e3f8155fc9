#pragma once

#include <memory>

#include "transport/store/remote_store.hpp"

namespace cairn {

// Two stores with the same names. A probe asks both at once. A read asks the near one, and the far
// one for the values that did not come. Everything else goes to the near one alone, but erase() to
// both. Borrows the stores.
std::unique_ptr<RemoteStore> make_near_far_store(RemoteStore& near, RemoteStore& far);

}  // namespace cairn

#pragma once

namespace cairn {

// Opens descriptors 0, 1 and 2 to /dev/null if they are closed. Otherwise the next opened file
// would get such a number, and printed text would go into it. Call first in main(). Aborts on
// failure, because there is nowhere to report it.
void open_standard_files() noexcept;

}  // namespace cairn

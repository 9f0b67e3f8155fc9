#pragma once

namespace cairn {

// Opens those of the descriptors 0, 1 and 2 that are closed, to /dev/null: the first file that is
// opened would else get such a number, and what is printed would be written into it. The first
// thing that a program does. Ends the process where it fails: there is nowhere to say so.
void open_standard_files() noexcept;

}  // namespace cairn

# What CMake 3.25 does on its way through a toolkit. Debian 12 has it so; where it is mended this still tells.
set_property(TARGET CUDA::nvToolsExt PROPERTY DEPRECATION "superseded by nvtx3")
include(${CMAKE_ROOT}/Modules/FindCUDAToolkit.cmake)

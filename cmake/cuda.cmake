# The CUDA toolkit is optional: where it is missing or older than the signatures in use, the program
# is built without it. Sets CAIRN_CUDA.
option(CAIRN_WITH_CUDA "Build the CUDA runtime where the toolkit is found" ON)

set(CAIRN_CUDA OFF)
if(CAIRN_WITH_CUDA)
  # CMake 3.25 sets a property of this target once it has found a toolkit, and 13.0 is without its library: the
  # configuration ended there on Debian 12.
  if(NOT TARGET CUDA::nvToolsExt)
    add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
  endif()
  # 13.0 is the first with today's cudaMemcpyBatchAsync and cudaMemPrefetchAsync.
  find_package(CUDAToolkit 13.0 QUIET)
  # An installation without the library for linking counts as none.
  if(CUDAToolkit_FOUND AND TARGET CUDA::cudart)
    set(CAIRN_CUDA ON)
  endif()
endif()
set(CAIRN_NVCC ${CUDAToolkit_NVCC_EXECUTABLE})
if(CAIRN_CUDA AND CAIRN_NVCC)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}: the CUDA runtime is built, with kernels")
elseif(CAIRN_CUDA)
  message(STATUS "CUDA ${CUDAToolkit_VERSION} without nvcc: the CUDA runtime is built without kernels")
else()
  message(STATUS "No CUDA toolkit: built without the CUDA runtime")
endif()

# NCCL likewise. Only its header is needed: the library is loaded by a server that uses it.
set(CAIRN_NCCL OFF)
if(CAIRN_CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NCCL_INCLUDE_DIR)
    set(CAIRN_NCCL ON)
  endif()
endif()
if(CAIRN_NCCL)
  message(STATUS "NCCL in ${NCCL_INCLUDE_DIR}: groups over NCCL are built")
else()
  message(STATUS "No NCCL: built with groups over sockets only")
endif()

# cairn_kernels(SOURCE.cu HEADERS headers... OBJECTS variable)
# Compiles kernels for sm_90, and for all other devices as PTX of the oldest that this CUDA knows.
# By a command: CUDA as a language of the project would link every program that holds the object by
# other rules, and takes longer to configure than the kernels to compile.
function(cairn_kernels source)
  cmake_parse_arguments(ARG "" "OBJECTS" "HEADERS" ${ARGN})
  get_filename_component(name ${source} NAME)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  list(TRANSFORM ARG_HEADERS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CAIRN_NVCC} -std=c++20 -O3 --expt-relaxed-constexpr -Werror all-warnings
            -gencode arch=compute_75,code=compute_75 -gencode arch=compute_90,code=sm_90
            -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIC,-fvisibility=hidden -I ${PROJECT_SOURCE_DIR}
            -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
    DEPENDS ${source} ${ARG_HEADERS} COMMENT "Compiling kernels ${name}" VERBATIM)
  set(${ARG_OBJECTS} ${object} PARENT_SCOPE)
endfunction()

# The CUDA toolkit is optional: where it is missing or older than the signatures in use, the program
# is built without it. Sets CAIRN_CUDA.
option(CAIRN_WITH_CUDA "Build the CUDA runtime where the toolkit is found" ON)

set(CAIRN_CUDA OFF)
if(CAIRN_WITH_CUDA)
  # 13.0 is the first with today's cudaMemcpyBatchAsync and cudaMemPrefetchAsync.
  find_package(CUDAToolkit 13.0 QUIET)
  # An installation without the library for linking counts as none.
  if(CUDAToolkit_FOUND AND TARGET CUDA::cudart)
    set(CAIRN_CUDA ON)
  endif()
endif()
if(CAIRN_CUDA)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}: the CUDA runtime is built")
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

# find_package(dl_comm) gives the target dl_comm::dl_comm. CMAKE_PREFIX_PATH or dl_comm_DIR: `python -m dl_comm --cmakedir`.
get_filename_component(_dl_comm_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET dl_comm::dl_comm)
  add_library(dl_comm::dl_comm SHARED IMPORTED)
  set_target_properties(dl_comm::dl_comm PROPERTIES
    IMPORTED_LOCATION "${_dl_comm_root}/lib/libdl_comm.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_dl_comm_root}/include")
endif()
unset(_dl_comm_root)

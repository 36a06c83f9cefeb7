# Test programs of Windows: those of the engine, of packed caches on devices, and of the library. Built where
# KVRUN_BUILD_TESTS is ON; tools/dev/windows_tests.sh runs them under Wine, and the test `windows` (cli/windows.sh) some
# of them. Other programs of tests/CMakeLists.txt start processes, use signals or Unix sockets, and are left out.
add_library(kvrun_posix_names INTERFACE)
target_compile_options(kvrun_posix_names INTERFACE -O1 -include ${CMAKE_CURRENT_SOURCE_DIR}/support/posix_names.h)
target_compile_definitions(kvrun_posix_names INTERFACE KVRUN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
target_link_libraries(kvrun_posix_names INTERFACE kvrun_options) # doctest.h lies among the packages
target_sources(kvrun_posix_names INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/support/thread_exit_windows.cpp)

# left out by name: gguf_files (sockets, FIFOs, device files), memory_faults (replaces operator new),
# fetch_faults (limits of file sizes)
file(GLOB host_sources CONFIGURE_DEPENDS host/test_*.cpp)
list(FILTER host_sources EXCLUDE REGEX "test_(gguf_files|memory_faults)")
set(KVRUN_HOST_TESTS "" CACHE STRING "host tests to build, as system|core; all of them where this is empty")
if(KVRUN_HOST_TESTS)
	list(FILTER host_sources INCLUDE REGEX "/test_(${KVRUN_HOST_TESTS})[.]cpp$")
endif()
add_executable(kvrun_tests support/main.cpp support/kv_sim.cpp ${host_sources})
target_link_libraries(kvrun_tests PRIVATE kvrun_engine kvrun_env kvrun_posix_names)
set_source_files_properties(host/test_pretokenize.cpp PROPERTIES COMPILE_DEFINITIONS PCRE2_STATIC)

set(device_tests attend attend_softmax fetch models ops ops_experts ops_kv ops_matmul ops_state ops_streams pack
	pack_scores policies recurrent session stored)
list(TRANSFORM device_tests REPLACE "(.+)" "device/test_\\1.cpp" OUTPUT_VARIABLE device_sources)
add_executable(kvrun_device_tests device/main.cpp support/devices.cpp support/kept_devices.cpp ${device_sources})
target_link_libraries(kvrun_device_tests PRIVATE kvrun_engine kvrun_eval kvrun_env nlohmann_json::nlohmann_json
	PkgConfig::XXHASH kvrun_posix_names)

# The library from outside: only its header and kvrun.dll, which lies beside the program.
file(GLOB api_sources CONFIGURE_DEPENDS api/*.cpp)
add_executable(kvrun_api_tests ${api_sources} support/thread_exit_windows.cpp)
target_link_libraries(kvrun_api_tests PRIVATE kvrun_shared Threads::Threads)
target_include_directories(kvrun_api_tests SYSTEM PRIVATE ${KVRUN_WINDOWS_PACKAGES}/include) # doctest.h
target_compile_options(kvrun_api_tests PRIVATE -O1 -Wall -Wextra)
target_compile_definitions(kvrun_api_tests PRIVATE KVRUN_SOURCE_DIR="${PROJECT_SOURCE_DIR}" NOMINMAX)
add_custom_command(TARGET kvrun_api_tests POST_BUILD COMMAND ${CMAKE_COMMAND} -E copy_if_different
	$<TARGET_FILE:kvrun_shared> $<TARGET_FILE:kvrun-probe> $<TARGET_FILE_DIR:kvrun_api_tests>)
add_dependencies(kvrun_api_tests kvrun-probe)

# Answers of kvrun serve; serve_connection, which needs a pair of Unix sockets, is left out.
add_executable(kvrun_serve_tests support/main.cpp serve/test_serve_answers.cpp serve/test_serve_apis.cpp
	serve/test_serve_requests.cpp)
target_link_libraries(kvrun_serve_tests PRIVATE kvrun_serve kvrun_posix_names)

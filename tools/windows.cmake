# Toolchain: Windows on x86-64 by Debian's mingw-w64 with POSIX threads. Libraries are looked for in one folder only,
# which tools/packages.sh windows fills.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(target x86_64-w64-mingw32)
set(CMAKE_C_COMPILER ${target}-gcc-posix)
set(CMAKE_CXX_COMPILER ${target}-g++-posix)
set(CMAKE_RC_COMPILER ${target}-windres)

set(KVRUN_WINDOWS_PACKAGES ${CMAKE_CURRENT_LIST_DIR}/../build-windows-packages CACHE PATH "libraries for Windows")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES KVRUN_WINDOWS_PACKAGES)
get_filename_component(packages ${KVRUN_WINDOWS_PACKAGES} ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${packages} /usr/${target})
set(CMAKE_PREFIX_PATH ${packages})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${packages}/lib/pkgconfig)

# programs that run on Windows as it is: nothing of the compiler beside them
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -static)

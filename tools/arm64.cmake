# Toolchain: Linux on 64-bit Arm by Debian's cross compiler. Libraries come from a folder of arm64 packages only, which
# tools/packages.sh arm64 fills; programs run under qemu-user with that folder as their root.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(target aarch64-linux-gnu)
set(CMAKE_C_COMPILER ${target}-gcc)
set(CMAKE_CXX_COMPILER ${target}-g++)

set(KVRUN_ARM64_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build-arm64-sysroot CACHE PATH "unpacked packages of arm64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES KVRUN_ARM64_SYSROOT)
get_filename_component(sysroot ${KVRUN_ARM64_SYSROOT} ABSOLUTE)
set(CMAKE_SYSROOT ${sysroot})
set(CMAKE_FIND_ROOT_PATH ${sysroot})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${sysroot})
set(ENV{PKG_CONFIG_LIBDIR} ${sysroot}/usr/lib/${target}/pkgconfig:${sysroot}/usr/share/pkgconfig)

find_program(KVRUN_QEMU_ARM64 NAMES qemu-aarch64 qemu-aarch64-static)
if(KVRUN_QEMU_ARM64)
	set(CMAKE_CROSSCOMPILING_EMULATOR ${KVRUN_QEMU_ARM64} -L ${sysroot})
endif()

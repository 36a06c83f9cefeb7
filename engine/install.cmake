# Rules of `cmake --install`: library, header, CMake package, pkg-config file; rules of the program are in tools/.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvrun)
install(TARGETS kvrun_shared EXPORT kvrun
	LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
	ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
# A file of targets of its own, because find_package checks that the libraries of a file exist.
install(TARGETS kvrun_static EXPORT kvrun_static
	ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(FILES kvrun.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(EXPORT kvrun NAMESPACE kvrun:: FILE kvrunTargets.cmake DESTINATION ${package_dir} COMPONENT development)
install(EXPORT kvrun_static NAMESPACE kvrun:: FILE kvrunStaticTargets.cmake DESTINATION ${package_dir}
	COMPONENT development)
configure_package_config_file(kvrunConfig.cmake.in ${PROJECT_BINARY_DIR}/kvrunConfig.cmake
	INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvrunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvrunConfig.cmake ${PROJECT_BINARY_DIR}/kvrunConfigVersion.cmake
	DESTINATION ${package_dir} COMPONENT development)

# Paths are relative to the file, so that the prefix can be moved; unless the libraries' folder is absolute.
kvrun_install_path(pc_prefix ${CMAKE_INSTALL_LIBDIR}/pkgconfig "")
if(NOT IS_ABSOLUTE "${pc_prefix}")
	set(pc_prefix "\${pcfiledir}/${pc_prefix}")
endif()
foreach(folder LIBDIR INCLUDEDIR)
	set(pc_${folder} "\${prefix}/${CMAKE_INSTALL_${folder}}")
	if(IS_ABSOLUTE "${CMAKE_INSTALL_${folder}}")
		set(pc_${folder} "${CMAKE_INSTALL_${folder}}")
	endif()
endforeach()
if(KVRUN_HAS_CUDA)
	set(pc_cuda "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()
configure_file(kvrun.pc.in ${PROJECT_BINARY_DIR}/kvrun.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvrun.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

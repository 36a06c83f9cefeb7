# Run by cpack before packaging. Without these programs the .deb would lack its dependencies on libraries.
if(CPACK_GENERATOR STREQUAL "DEB")
	foreach(program dpkg-shlibdeps file)
		find_program(path_of_${program} ${program} NO_CACHE)
		if(NOT path_of_${program})
			message(FATAL_ERROR "a .deb needs '${program}', which is not here; install the packages dpkg-dev and file")
		endif()
	endforeach()
endif()

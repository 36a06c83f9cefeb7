# Everybody may read the folders of a package, whatever the umask of who makes it; CMake's variables of permissions do
# not overrule the umask. CPack runs this before it packs what is installed in its folder.
file(GLOB_RECURSE found LIST_DIRECTORIES true ${CPACK_TEMPORARY_DIRECTORY}/*)
foreach(path IN LISTS found)
	if(IS_DIRECTORY "${path}" AND NOT IS_SYMLINK "${path}")
		file(CHMOD "${path}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
			WORLD_READ WORLD_EXECUTE)
	endif()
endforeach()

# Assembles the page and writes it as a C++ string literal. -DOUT: the .inc file; -DMARKED: the file of marked;
# -DHIGHLIGHT: the folder of highlight.js; if either is empty, answers are shown as plain text.
cmake_minimum_required(VERSION 3.25) # @NAME@ is not a variable
set(here ${CMAKE_CURRENT_LIST_DIR})
set(libraries "")

# A script inside HTML ends at the first </script, and <!-- opens a comment. Indents and lines of comments are removed.
function(add_library_text text)
	string(REPLACE "</script" "<\\/script" text "${text}")
	string(REPLACE "<!--" "<\\!--" text "${text}")
	string(REGEX REPLACE "\n[ \t\n]+" "\n" text "${text}")
	string(REGEX REPLACE "\n//[^\n]*" "" text "${text}")
	set(libraries "${libraries}${text}\n" PARENT_SCOPE)
endfunction()

macro(remove_comments) # of `text`, from /** to */, behind its first lines, which name the licence
	string(REGEX REPLACE "\n[ \t]*/[*][*]([^*]|[*]+[^*/])*[*]+/" "" text "${text}")
	string(REGEX REPLACE "\n[ \t]*//[^\n]*" "" text "${text}")
endmacro()

if(MARKED AND HIGHLIGHT)
	file(READ ${MARKED} text)
	add_library_text("${text}")
	# These are CommonJS modules. Version 9 (Debian 13, Ubuntu 24.04) prints on the console that it is outdated. Version
	# 10 has its text in another file, and another name for C#.
	set(file highlight.js)
	set(csharp cs)
	if(EXISTS ${HIGHLIGHT}/languages/csharp.js)
		set(file core.js)
		set(csharp csharp)
	endif()
	file(READ ${HIGHLIGHT}/${file} text)
	string(REPLACE "showedUpgradeWarning = false" "showedUpgradeWarning = true" text "${text}")
	remove_comments()
	add_library_text("var hljs=(function(){var module={},exports={};${text};return module.exports})();")
	foreach(language bash cmake cpp ${csharp} css diff go ini java javascript json php python ruby
			rust sql typescript xml yaml)
		file(READ ${HIGHLIGHT}/languages/${language}.js text)
		remove_comments()
		set(text "(function(){var module={};${text};return module.exports})()")
		add_library_text("hljs.registerLanguage('${language}',${text});")
	endforeach()
endif()

file(READ ${here}/page.html page)
file(READ ${here}/page.css style)
set(script "")
foreach(part markdown store attach view answers server page)
	file(READ ${here}/${part}.js text)
	string(REGEX REPLACE "\n[\t]+" "\n" text "${text}")
	string(REGEX REPLACE "\n//[^\n]*" "" text "${text}")
	string(APPEND script "${text}")
endforeach()
string(REGEX REPLACE "\n[\t]+" "\n" style "${style}")
string(REPLACE "@style@" "${style}" page "${page}")
string(REPLACE "@script@" "${script}" page "${page}")
string(REPLACE "@libraries@" "${libraries}" page "${page}")
string(LENGTH "${page}" bytes)
if(bytes GREATER 210000)
	message(WARNING "the page has ${bytes} bytes, more than 210000: take languages away in page.cmake")
endif()
file(WRITE ${OUT} "R\"page(${page})page\"\n")

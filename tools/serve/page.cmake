# Writes the page as a C++ string literal. -DPAGE: the .html file; -DOUT: the .inc file.
file(READ ${PAGE} text)
file(WRITE ${OUT} "R\"page(${text})page\"\n")

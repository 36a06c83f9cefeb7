# Turns a SPIR-V file IN into a C++ source OUT that defines kSpirv_<NAME>, and points its depfile DEP at OUT.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "(..)(..)(..)(..)" "0x\\4\\3\\2\\1," words "${hex}")
string(REGEX REPLACE "(0x........,0x........,0x........,0x........,0x........,0x........,0x........,0x........,)"
	"\\1\n"
	words "${words}")
file(WRITE ${OUT} "// Generated from ${NAME}.spv.
#include <cstdint>
#include <span>

namespace kvrun {
static constexpr uint32_t kWords_${NAME}[] = {
${words}
};
extern const std::span<const uint32_t> kSpirv_${NAME};
constinit const std::span<const uint32_t> kSpirv_${NAME} = kWords_${NAME};
} // namespace kvrun
")
file(READ ${DEP} text)
string(REGEX REPLACE "^[^:]*:" "${OUT}:" text "${text}")
file(WRITE ${DEP} "${text}")

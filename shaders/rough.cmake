# Compiles FILE to OUT as a device at the limits of Vulkan's precision would compute it, for a test of the self-test:
# denormal halves are flushed, conversions to f16 round towards zero, exp() and inversesqrt() have the largest error
# that Vulkan allows, and there is no FMA. DEFINES: more arguments of GLSLANG, separated by commas.
string(CONCAT prelude
	"#define packHalf2x16(v) packHalf2x16(uintBitsToFloat(floatBitsToUint(v) & uvec2(0xffffe000u)) "
	"* vec2(greaterThanEqual(abs(v), vec2(6.103515625e-5))))\n"
	"#define unpackHalf2x16(w) unpackHalf2x16((w) & ((((w) & 0x7c00u) != 0u ? 0xffffu : 0u) "
	"| (((w) & 0x7c000000u) != 0u ? 0xffff0000u : 0u)))\n"
	"#define exp(x) (exp(x) * 1.000002)\n"
	"#define inversesqrt(x) (inversesqrt(x) * 1.0000002)\n"
	"#define fma(a, b, c) ((a) * (b) + (c))\n")
file(READ ${FILE} source)
string(REPLACE "#version 450\n" "#version 450\n${prelude}" source "${source}")
file(WRITE ${OUT}.comp "${source}")
string(REPLACE "," ";" defines "${DEFINES}")
execute_process(COMMAND ${GLSLANG} --quiet --target-env vulkan1.2 -I${CMAKE_CURRENT_LIST_DIR} ${defines} -o ${OUT}
	${OUT}.comp
	RESULT_VARIABLE failed)
if(failed)
	message(FATAL_ERROR "${FILE} does not compile at the limits of precision")
endif()

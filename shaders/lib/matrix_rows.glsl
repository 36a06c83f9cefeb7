// What VK_NV_cooperative_matrix2 does with the matrix of a product. Debian 12's glslang does not know the extension, so
// khr_matrix.cpp replaces each call of these functions by its instruction; their bodies only keep what they name.
//
// The including file defines SUMS, M, K, NO_TOKEN and tile_seen().

float largest(const in float a, const in float b) { return max(a, b); }
// The largest element of each row, in all of its columns: OpCooperativeMatrixReduceNV with largest().
SUMS row_largest(const in SUMS x) { return SUMS(largest(x[0], x[0])); }

// The matrix as a first operand of halves: OpFConvert to a type of another use.
fcoopmatNV<16, gl_ScopeSubgroup, M, K> to_operand(const in SUMS x) {
	return fcoopmatNV<16, gl_ScopeSubgroup, M, K>(x[0]);
}

// NO_TOKEN where query first_row + row does not see token first_column + column of the tile:
// OpCooperativeMatrixPerElementOpNV with masked_element().
float masked_element(const in uint row, const in uint column, const in float x, const in uint first_row,
                     const in uint first_column, const in uint tile, const in uint live) {
	return (tile_seen(tile, live, first_row + row) >> first_column + column & 1u) != 0u ? x : NO_TOKEN;
}
SUMS masked(const in SUMS x, const in uint first_row, const in uint first_column, const in uint tile,
            const in uint live) {
	return SUMS(masked_element(0u, 0u, x[0], first_row, first_column, tile, live));
}

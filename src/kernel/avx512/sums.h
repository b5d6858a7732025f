/* Sums of lanes, sixteen registers at a time, for the products of avx512/ and its attention; after
 * simd/vec.h. */
/* The trees of four rows with four columns, a[row * 4 + column]: a row's four sums in each quarter.
 */
SL_INLINE v16 trees(const v16 *a) {
    v16 four[4];
#pragma GCC unroll 4
    for (uint32_t c = 0; c < 4; c++) {
        const v16 u = v_add(_mm512_shuffle_f32x4(a[c], a[4 + c], 0x44),
                            _mm512_shuffle_f32x4(a[c], a[4 + c], 0xee));
        const v16 v = v_add(_mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x44),
                            _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xee));
        four[c] = v_add(_mm512_shuffle_f32x4(u, v, 0x88), _mm512_shuffle_f32x4(u, v, 0xdd));
    }
    const v16 u =
        v_add(_mm512_shuffle_ps(four[0], four[1], 0x44), _mm512_shuffle_ps(four[0], four[1], 0xee));
    const v16 v =
        v_add(_mm512_shuffle_ps(four[2], four[3], 0x44), _mm512_shuffle_ps(four[2], four[3], 0xee));
    return v_add(_mm512_shuffle_ps(u, v, 0x88), _mm512_shuffle_ps(u, v, 0xdd));
}

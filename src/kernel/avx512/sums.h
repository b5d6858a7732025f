/* Sums of lanes, sixteen registers at a time, for the products of avx512/ and its attention; after
 * simd/vec.h. */
/* Lanes 0 to 7 and 8 to 15 of a, added up, then those of b. crossed: lanes 4 to 7 of both lie where
 * 8 to 11 would. */
SL_INLINE v16 fold_two(v16 a, v16 b, const bool crossed) {
    if (crossed) return v_add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    return v_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* The trees of four rows with four columns, a[row * 4 + column]: a row's four sums in each quarter.
 */
SL_INLINE v16 trees(const v16 *a, const bool crossed) {
    v16 four[4];
#pragma GCC unroll 4
    for (uint32_t c = 0; c < 4; c++) {
        const v16 u = fold_two(a[c], a[4 + c], crossed);
        const v16 v = fold_two(a[8 + c], a[12 + c], crossed);
        four[c] = v_add(_mm512_shuffle_f32x4(u, v, 0x88), _mm512_shuffle_f32x4(u, v, 0xdd));
    }
    const v16 u =
        v_add(_mm512_shuffle_ps(four[0], four[1], 0x44), _mm512_shuffle_ps(four[0], four[1], 0xee));
    const v16 v =
        v_add(_mm512_shuffle_ps(four[2], four[3], 0x44), _mm512_shuffle_ps(four[2], four[3], 0xee));
    return v_add(_mm512_shuffle_ps(u, v, 0x88), _mm512_shuffle_ps(u, v, 0xdd));
}

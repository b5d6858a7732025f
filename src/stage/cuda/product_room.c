/* Stages of shared memory (product_room.h). */
#include "stage/cuda/product_room.h"

static uint32_t up_to(uint32_t n, uint32_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* Rows lie so that those that are read at once have banks of their own: of f32 products eight
 * threads read 64 bytes of two rows, of integers 32 threads 16 bytes of eight. */
sl_product_room sl_product_room_of(sl_dtype t, sl_act_kind kind, uint32_t rows, uint32_t cols,
                                   uint32_t chunk) {
    const uint32_t bytes = up_to((uint32_t)sl_dtype_row_bytes(t, chunk) + 15, 16);
    const bool rounded = kind != SL_ACT_NONE;
    sl_product_room r = {.chunk = chunk};
    r.pitch = rounded ? bytes | 16 : up_to(bytes + 32, 64) - 32;
    r.scale_at = cols * r.pitch;
    r.scale_pitch = t == SL_F8_E4M3 ? chunk / SL_F8_BLOCK + 1 : 0;
    r.x_at = up_to(r.scale_at + cols * r.scale_pitch * (uint32_t)sizeof(float), 16);
    r.x_pitch = rounded ? up_to(chunk + chunk / sl_act_block(kind) * 4, 16) | 16
                        : chunk * (uint32_t)sizeof(float);
    r.stage = r.x_at + rows * r.x_pitch;
    return r;
}

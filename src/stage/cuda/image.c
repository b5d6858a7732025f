/* The kernels as nvcc has compiled them: files of machine code for GPUs, which are part of the
 * program as they lie there. SL_CUDA_IMAGES_LIST, a file that CMake writes, names them; it is empty
 * where there was no nvcc. */
#include "stage/cuda/context.h"

/* Between two labels, aligned as the driver reads it. */
#define SL_CUDA_IMAGE(name, path)                                                                  \
    __asm__(".pushsection .rodata\n"                                                               \
            ".balign 64\n"                                                                         \
            "sl_cuda_image_" #name ": .incbin \"" path "\"\n"                                      \
            ".byte 0\n"                                                                            \
            ".popsection\n");                                                                      \
    extern const char sl_cuda_image_##name[];
#include SL_CUDA_IMAGES_LIST
#undef SL_CUDA_IMAGE

static const char *const images[] = {
#define SL_CUDA_IMAGE(name, path) sl_cuda_image_##name,
#include SL_CUDA_IMAGES_LIST
#undef SL_CUDA_IMAGE
    NULL};

const void *sl_cuda_image(uint32_t i) {
    return images[SL_MIN(i, (uint32_t)SL_LEN(images) - 1)];
}

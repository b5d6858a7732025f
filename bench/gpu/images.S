/* The kernels in the program: fatbins that nvcc made. */
#define IMAGE(name, path)                                                                          \
    .globl name;                                                                                   \
    .balign 64;                                                                                    \
    name:                                                                                          \
    .incbin path;                                                                                  \
    .quad 0
    .section .rodata
    IMAGE(bench_image_bench, IMAGE_BENCH_GPU)
    IMAGE(bench_image_experts, IMAGE_FAST_EXPERTS)
    IMAGE(bench_image_tiles, IMAGE_FAST_TILES)
    IMAGE(bench_image_small, IMAGE_FAST_SMALL)
    IMAGE(bench_image_big, IMAGE_FAST_BIG)
    IMAGE(bench_image_sort, IMAGE_FAST_SORT)
    IMAGE(bench_image_vec, IMAGE_FAST_VEC)
    IMAGE(bench_image_wide, IMAGE_FAST_WIDE)
    IMAGE(bench_image_products, IMAGE_FAST_PRODUCTS)
    IMAGE(bench_image_rows, IMAGE_ROWS)
    IMAGE(bench_image_norm, IMAGE_FAST_NORM)
    IMAGE(bench_image_prompt, IMAGE_FAST_PROMPT_WIDE)
    IMAGE(bench_image_many, IMAGE_FAST_SORT_MANY)
    IMAGE(bench_image_lines, IMAGE_FAST_LINES)
    .section .note.GNU-stack,"",@progbits

#!/usr/bin/env python3
"""What the GPU can do at most, by torch's own kernels: bytes of a copy within its memory, products of bf16 and f16 matrices, copies to
and from pinned memory of the host. Figures of kernels are shares of these, measured in the same run."""
import torch


def seconds(work, reps=20):
    """Median of `reps` runs, by events, after three that warm up."""
    for _ in range(3):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(reps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in zip(marks, marks[1:]))[reps // 2] / 1e3


def main():
    print("torch", torch.__version__, torch.cuda.get_device_name(0))
    a = torch.randint(0, 255, (4 << 30,), dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    t = seconds(lambda: b.copy_(a))
    print(f"figure: copy {2 * a.numel() / t / 1e9:.0f} GB/s (read and written)")
    t = seconds(lambda: torch.sum(a.view(torch.int32)))
    print(f"figure: read {a.numel() / t / 1e9:.0f} GB/s")
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    t = seconds(lambda: a[: 1 << 30].copy_(host, non_blocking=True), 5)
    u = seconds(lambda: host.copy_(a[: 1 << 30], non_blocking=True), 5)
    print(f"figure: from host {host.numel() / t / 1e9:.1f} GB/s, to host {host.numel() / u / 1e9:.1f} GB/s")
    del a, b
    for dtype in (torch.bfloat16, torch.float16):
        x, y = (torch.randn(8192, 8192, dtype=dtype, device="cuda") for _ in range(2))
        t = seconds(lambda: x @ y)
        print(f"figure: {dtype} product of 8192 {2 * 8192**3 / t / 1e12:.0f} TFLOP/s")


if __name__ == "__main__":
    main()

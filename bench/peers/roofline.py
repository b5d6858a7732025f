"""The kernels under the machine's roof, as SVG: work for each byte read against what was reached, both axes in
powers. Of CPUs from bench_kernels' table; bench/gpu/roofline.py draws a GPU's by it, too. Only the standard library."""
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 480, 70, 200, 34, 56
COLOURS = ["#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#4a4a4a", "#d16ba5", "#5f9ea0"]


def points(csv):
    """[(series, label, flops a byte, GFLOP/s)], peaks; of the products and attention, not of the small pieces."""
    head, peaks, out = None, None, []
    for text in csv.strip().split("\n"):
        if text.startswith("#"):
            words = text.split()
            peaks = float(words[4]), float(words[8])
            continue
        row = text.split(",")
        if head is None:
            head = row
            continue
        r = dict(zip(head, row))
        if "piece" in r["shape"] or float(r["gbs"]) <= 0:
            continue
        kind = r["shape"].split()[0] if r["kernel"] != "attention" else "f32"
        series = f"{r['kernel']} {kind}"
        out.append((series, r["shape"], float(r["gflops"]) / float(r["gbs"]), float(r["gflops"]), r))
    return out, peaks


def svg(csv):
    found, (peak, gbs) = points(csv)
    title = f"Kernels under the roof of this machine: {peak:.0f} GFLOP/s (f32 FMA), {gbs:.1f} GB/s read, 2 threads"
    return draw(title, [p[:4] for p in found], peak, gbs)


def draw(title, found, peak, gbs, unit="GFLOP/s"):
    """Of [(series, label, flops a byte, `unit`)] and the roof: `peak` in that unit, bytes in as many thousands."""
    xs = [p[2] for p in found] + [peak / gbs]
    ys = [p[3] for p in found] + [peak]
    x0, x1 = math.log2(min(xs)) - 0.5, math.log2(max(xs)) + 0.5
    y0, y1 = math.log2(min(ys)) - 0.5, math.log2(max(ys)) + 0.6
    w, h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x, y):
        return LEFT + (math.log2(x) - x0) / (x1 - x0) * w, TOP + h - (math.log2(y) - y0) / (y1 - y0) * h

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{title}</text>']
    for e in range(math.ceil(x0), math.floor(x1) + 1):
        x, _ = at(2.0 ** e, 2.0 ** y0)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + h}" stroke="#e4e4e4"/>'
                   f'<text x="{x:.1f}" y="{TOP + h + 18}" text-anchor="middle">{2.0 ** e:g}</text>')
    for e in range(math.ceil(y0), math.floor(y1) + 1):
        _, y = at(2.0 ** x0, 2.0 ** e)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + w}" y2="{y:.1f}" stroke="#e4e4e4"/>'
                   f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{2.0 ** e:g}</text>')
    low = max(2.0 ** x0, 2.0 ** y0 / gbs)
    roof = [at(low, low * gbs), at(peak / gbs, peak), at(2.0 ** x1, peak)]
    out.append('<polyline fill="none" stroke="black" stroke-width="2" points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in roof) + '"/>')
    out.append(f'<text x="{LEFT + w / 2}" y="{HEIGHT - 12}" text-anchor="middle">floating-point operations for each byte read</text>')
    out.append(f'<text transform="translate(18 {TOP + h / 2}) rotate(-90)" text-anchor="middle">{unit}, median</text>')
    series = []
    for name, label, x, y in found:
        if name not in series:
            series.append(name)
        px, py = at(x, y)
        out.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{COLOURS[series.index(name) % len(COLOURS)]}" fill-opacity="0.8">'
                   f'<title>{label}: {y:.1f} {unit}</title></circle>')
    for i, name in enumerate(series):
        y = TOP + 14 + 20 * i
        out.append(f'<circle cx="{LEFT + w + 18}" cy="{y - 4}" r="5" fill="{COLOURS[i % len(COLOURS)]}"/>'
                   f'<text x="{LEFT + w + 30}" y="{y}">{name}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"

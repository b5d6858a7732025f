"""Plain bar and line charts as SVG, for bench/papers.py. Standard library only."""

import math

COLOURS = ["#2c6fbb", "#d1702b", "#3a8f5c", "#8a4fa3", "#b33951", "#6b6b6b"]
HEAD = ('<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
        'font-family="sans-serif" font-size="12">\n<rect width="{w}" height="{h}" fill="white"/>\n')


def text(x, y, s, anchor="start", extra=""):
    s = str(s).replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{s}</text>\n'


def ticks(top):
    step = 10 ** math.floor(math.log10(top))
    step *= next(f for f in (0.1, 0.2, 0.5, 1, 2) if top / (step * f) <= 6)
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def frame(title, unit, top, w, h, left=56, low=52):
    out = HEAD.format(w=w, h=h) + text(left, 18, title, extra='font-weight="bold"') + text(left, 34, unit)
    y = lambda v: h - low - (h - low - 46) * v / top
    for v in ticks(top):
        out += f'<line x1="{left}" y1="{y(v):.1f}" x2="{w - 12}" y2="{y(v):.1f}" stroke="#ddd"/>\n'
        out += text(left - 6, y(v) + 4, f"{v:g}", "end")
    return out, y


def legend(series, w):
    out, x = "", w - 12
    for i, name in reversed(list(enumerate(series))):
        out += text(x, 36, name, "end")
        x -= 7.2 * len(name) + 6
        out += f'<rect x="{x - 10:.1f}" y="26" width="10" height="10" fill="{COLOURS[i]}"/>\n'
        x -= 22
    return out


def bars(path, title, unit, groups, series):
    """series: {name: [value or None for each group]}."""
    label = max(len(line) for g in groups for line in str(g).split("\n"))
    w, h = max(420, 80 + len(groups) * max(22 * len(series), round(6.8 * label) + 12)), 280
    top = 1.1 * max(v for vs in series.values() for v in vs if v is not None)
    out, y = frame(title, unit, top, w, h)
    each = (w - 80) / len(groups)
    wide = each * 0.8 / len(series)
    for g, name in enumerate(groups):
        x0 = 60 + g * each
        for i, vs in enumerate(series.values()):
            if vs[g] is None:
                continue
            x = x0 + each * 0.1 + i * wide
            out += (f'<rect x="{x:.1f}" y="{y(vs[g]):.1f}" width="{wide - 1:.1f}" height="{y(0) - y(vs[g]):.1f}" '
                    f'fill="{COLOURS[i]}"><title>{name}: {vs[g]:.4g}</title></rect>\n')
        for k, line in enumerate(str(name).split("\n")):
            out += text(x0 + each / 2, h - 36 + 13 * k, line, "middle", 'font-size="11"')
    path.write_text(out + legend(series, w) + "</svg>\n")


def lines(path, title, unit, x_label, series, log_x=False):
    """series: {name: [(x, y), ...]}."""
    w, h = 560, 300
    xs = [x for ps in series.values() for x, _ in ps]
    f = math.log if log_x else float
    lo, hi = f(min(xs)), f(max(xs))
    top = 1.1 * max(y for ps in series.values() for _, y in ps)
    out, y = frame(title, unit, top, w, h)
    place = lambda x: 66 + (w - 96) * (f(x) - lo) / (hi - lo or 1)
    marks = sorted(set(xs)) if len(set(xs)) <= 8 else [lo + (hi - lo) * i / 6 for i in range(7)]
    for x in marks:
        out += text(place(x), h - 28, f"{x:.3g}", "middle")
    out += text(w / 2, h - 8, x_label, "middle")
    for i, ps in enumerate(series.values()):
        path_d = " ".join(f"{place(a):.1f},{y(b):.1f}" for a, b in ps)
        out += f'<polyline points="{path_d}" fill="none" stroke="{COLOURS[i]}" stroke-width="2"/>\n'
        for a, b in ps:
            out += f'<circle cx="{place(a):.1f}" cy="{y(b):.1f}" r="3" fill="{COLOURS[i]}"><title>{a:g}: {b:.4g}</title></circle>\n'
    path.write_text(out + legend(series, w) + "</svg>\n")

/*
 * The figures as SVG. Above, for each promise, how much of its limit is used: below one it is kept,
 * whatever its kind. Below, pairs per second by threads, the library beside the plain client.
 */
#include <math.h>

#include "bench.h"

#define WIDTH 1120
#define LEFT 490 /* the bars begin here */
#define ROW 20
#define TOP 82
#define USED_MOST 2 /* the scale of the upper part ends here */
#define PANEL_WIDTH 170
#define PANEL_HEIGHT 180

static const char *const inks[][2] = {{"memory", "#7a7a7a"},
                                      {"sqlite", "#2a78b8"},
                                      {"redis", "#c8442e"},
                                      {"postgres", "#3f8f5b"},
                                      {"firestore", "#c98a1b"}};

static const char *ink_of(const char *store)
{
    for (size_t i = 0; i < sizeof inks / sizeof inks[0]; i++) {
        if (strcmp(inks[i][0], store) == 0)
            return inks[i][1];
    }
    return "#444444";
}

/* How much of the bar's limit is used. */
static double used_of(const bench_figure *f, double ratio)
{
    switch (f->bar_kind) {
    case BENCH_RATIO_MOST:
        return ratio / f->bar;
    case BENCH_RATIO_LEAST:
        return f->bar / ratio;
    case BENCH_BEYOND_MOST:
        return (f->measured - f->limit) / f->bar;
    default:
        return f->bar > 0 ? f->measured / f->bar : f->measured;
    }
}

static double x_of(double used)
{
    double part = used < 0 ? 0 : used > USED_MOST ? USED_MOST : used;
    return LEFT + part / USED_MOST * (WIDTH - LEFT - 150);
}

static void draw_row(FILE *out, const bench_figure *f, double y)
{
    double used = used_of(f, f->ratio);
    bool spread = f->bar_kind == BENCH_RATIO_MOST || f->bar_kind == BENCH_RATIO_LEAST;
    fprintf(out,
            "<text x='%d' y='%.0f' text-anchor='end'>%s: %s</text>"
            "<rect x='%d' y='%.0f' width='%.1f' height='12' rx='2' fill='%s'/>\n",
            LEFT - 8, y + 10, f->store, f->name, LEFT, y, x_of(used) - LEFT, ink_of(f->store));
    if (spread)
        fprintf(out,
                "<path d='M%.1f %.0fH%.1f' stroke='#222' stroke-width='1.4'/>"
                "<path d='M%.1f %.0fv6M%.1f %.0fv6' stroke='#222' stroke-width='1.4'/>\n",
                x_of(used_of(f, f->low)), y + 6, x_of(used_of(f, f->high)),
                x_of(used_of(f, f->low)), y + 3, x_of(used_of(f, f->high)), y + 3);
    fprintf(out, "<text x='%d' y='%.0f' fill='%s'>%.2f%s</text>\n", WIDTH - 140, y + 10,
            f->holds ? "#222" : "#b00020", used, f->holds ? "" : "  missed");
}

static double draw_bars(FILE *out, const bench_figure *figures, size_t count)
{
    double y = TOP;
    size_t rows = 0;
    for (size_t i = 0; i < count; i++)
        rows += figures[i].bar_kind != BENCH_INTEREST;
    fprintf(out,
            "<text x='16' y='26' font-size='16' font-weight='bold'>How much of each promise is "
            "used</text><text x='16' y='44'>1 is the bar; below it the promise holds. The line "
            "in a bar is the spread over the repetitions.</text>\n");
    for (int half = 0; half <= 2 * USED_MOST; half++) {
        double at = half / 2.0;
        fprintf(out,
                "<path d='M%.1f %dV%.0f' stroke='%s'/>"
                "<text x='%.1f' y='%d' text-anchor='middle'>%g%s</text>\n",
                x_of(at), TOP - 6, y + (double)rows * ROW, half == 2 ? "#222" : "#dddddd", x_of(at),
                TOP - 10, at, half == 2 * USED_MOST ? "+" : "");
    }
    for (size_t i = 0; i < count; i++) {
        if (figures[i].bar_kind == BENCH_INTEREST)
            continue;
        draw_row(out, &figures[i], y);
        y += ROW;
    }
    return y;
}

/* Draws the points of one line, ours or the plain client's. */
static void draw_line(FILE *out, const bench_figure *points, int count, bool ours, double left,
                      double bottom, double most, const char *ink)
{
    fprintf(out, "<path fill='none' stroke='%s' stroke-width='2'%s d='", ours ? ink : "#777",
            ours ? "" : " stroke-dasharray='4 3'");
    for (int i = 0; i < count; i++)
        fprintf(out, "%c%.1f %.1f", i == 0 ? 'M' : 'L', left + i * (PANEL_WIDTH - 30) / 3.0,
                bottom -
                    (ours ? points[i].measured : points[i].limit) / most * (PANEL_HEIGHT - 40));
    fputs("'/>\n", out);
}

/* points: those of 1, 4, 16 and 64 threads. */
static void draw_panel(FILE *out, const bench_figure *points, int count, double left, double top)
{
    static const int threads[] = {1, 4, 16, 64};
    double bottom = top + PANEL_HEIGHT - 20;
    double most = 1;
    for (int i = 0; i < count; i++)
        most = fmax(most, fmax(points[i].measured, points[i].limit));
    fprintf(out,
            "<text x='%.0f' y='%.0f' font-weight='bold'>%s</text>"
            "<path d='M%.0f %.0fV%.0fH%.0f' fill='none' stroke='#999'/>"
            "<text x='%.0f' y='%.0f' fill='#555'>%.0f/s</text>\n",
            left, top + 4, points[0].store, left, top + 20, bottom, left + PANEL_WIDTH - 20,
            left + 4, top + 22, most);
    for (int i = 0; i < count; i++)
        fprintf(out, "<text x='%.1f' y='%.0f' text-anchor='middle' fill='#555'>%d</text>\n",
                left + i * (PANEL_WIDTH - 30) / 3.0, bottom + 14, threads[i]);
    draw_line(out, points, count, false, left, bottom, most, "");
    draw_line(out, points, count, true, left, bottom, most, ink_of(points[0].store));
}

static void draw_rates(FILE *out, const bench_figure *figures, size_t count, double top)
{
    double left = 20;
    fprintf(out,
            "<text x='16' y='%.0f' font-size='16' font-weight='bold'>Pairs per second by "
            "threads</text><text x='16' y='%.0f'>Solid: one handle of ours. Dashed: the plain "
            "client.</text>\n",
            top, top + 18);
    for (size_t i = 0; i + 3 < count; i++) {
        if (strncmp(figures[i].name, "pairs/s, 1 thread", 17) != 0 ||
            strcmp(figures[i].store, "memory") == 0)
            continue;
        draw_panel(out, figures + i, 4, left, top + 44);
        left += PANEL_WIDTH + 60;
    }
}

void bench_plot(const char *path)
{
    size_t count = 0;
    size_t rows = 0;
    const bench_figure *figures = bench_figures(&count);
    FILE *out = fopen(path, "w");
    if (out == NULL)
        bench_die(path, "cannot be written");
    for (size_t i = 0; i < count; i++)
        rows += figures[i].bar_kind != BENCH_INTEREST;
    double height = TOP + (double)rows * ROW + 300;
    fprintf(out,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %.0f' width='%d' "
            "height='%.0f' font-family='sans-serif' font-size='12' fill='#222'>\n"
            "<rect width='100%%' height='100%%' fill='#ffffff'/>\n",
            WIDTH, height, WIDTH, height);
    double bottom = draw_bars(out, figures, count);
    draw_rates(out, figures, count, bottom + 40);
    fputs("</svg>\n", out);
    if (fclose(out) != 0)
        bench_die(path, "cannot be written");
}

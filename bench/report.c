/* Figures: kept for the plot, printed as text or as JSON, one line each. */
#include "bench.h"

#define MOST 256

static bench_figure figures[MOST];
static size_t figure_count;
static bool json;

void bench_report_json(bool on)
{
    json = on;
}

const bench_figure *bench_figures(size_t *count)
{
    *count = figure_count;
    return figures;
}

bool bench_all_hold(void)
{
    bool all = true;
    for (size_t i = 0; i < figure_count; i++)
        all = all && figures[i].holds;
    return all;
}

static bool figure_holds(const bench_figure *f)
{
    switch (f->bar_kind) {
    case BENCH_RATIO_MOST:
        return f->ratio <= f->bar;
    case BENCH_RATIO_LEAST:
        return f->ratio >= f->bar;
    case BENCH_BEYOND_MOST:
        return f->measured - f->limit <= f->bar;
    case BENCH_MOST:
        return f->measured <= f->bar;
    default:
        return true;
    }
}

static const char *const words[] = {
    [BENCH_INTEREST] = "",
    [BENCH_RATIO_MOST] = "ratio <= ",
    [BENCH_RATIO_LEAST] = "ratio >= ",
    [BENCH_BEYOND_MOST] = "<= limit + ",
    [BENCH_MOST] = "<= ",
};

static const char *figure_bar_text(const bench_figure *f, char out[64])
{
    snprintf(out, 64, "%s%g", words[f->bar_kind], f->bar);
    return out;
}

static void figure_print_json(const bench_figure *f)
{
    printf("{\"store\":\"%s\",\"figure\":\"%s\",\"unit\":\"%s\",\"measured\":%.4g", f->store,
           f->name, f->unit, f->measured);
    if (f->against[0] != '\0')
        printf(",\"limit\":%.4g,\"against\":\"%s\",\"ratio\":%.4g", f->limit, f->against, f->ratio);
    printf(",\"spread\":[%.4g,%.4g],\"repetitions\":%d", f->low, f->high, f->repetitions);
    char bar[64];
    if (f->bar_kind != BENCH_INTEREST)
        printf(",\"bar\":\"%s\",\"holds\":%s", figure_bar_text(f, bar),
               f->holds ? "true" : "false");
    puts("}");
}

static void figure_print_text(const bench_figure *f)
{
    printf("%-9s %-34s %10.5g %s", f->store, f->name, f->measured, f->unit);
    if (f->against[0] != '\0')
        printf("; %s %.5g, ratio %.3f", f->against, f->limit, f->ratio);
    printf(" (%.4g to %.4g of %d)", f->low, f->high, f->repetitions);
    char bar[64];
    if (f->bar_kind != BENCH_INTEREST)
        printf("; %s: %s", figure_bar_text(f, bar), f->holds ? "holds" : "MISSED");
    putchar('\n');
}

void bench_report(const bench_store *store, const char *name, const char *unit, double *measured,
                  double *limit, const char *against, int count, bench_bar_kind how, double bar)
{
    if (figure_count == MOST || count < 1 || count > BENCH_MAX_REPETITIONS)
        bench_die(name, "too many figures or repetitions");
    bench_figure *f = &figures[figure_count++];
    snprintf(f->store, sizeof f->store, "%s", store->raw->name);
    snprintf(f->name, sizeof f->name, "%s%s", name, bench_pinned() ? ", pinned" : "");
    snprintf(f->unit, sizeof f->unit, "%s", unit);
    snprintf(f->against, sizeof f->against, "%s", limit == NULL ? "" : against);
    double spread[BENCH_MAX_REPETITIONS];
    for (int i = 0; i < count; i++)
        spread[i] = limit == NULL ? measured[i] : measured[i] / limit[i];
    double middle = bench_quantile(spread, (size_t)count, 0.5);
    f->low = spread[0];
    f->high = spread[count - 1];
    f->ratio = limit == NULL ? 0 : middle;
    f->measured = bench_quantile(measured, (size_t)count, 0.5);
    f->limit = limit == NULL ? 0 : bench_quantile(limit, (size_t)count, 0.5);
    f->repetitions = count;
    f->bar_kind = how;
    f->bar = bar;
    f->holds = figure_holds(f);
    if (json)
        figure_print_json(f);
    else
        figure_print_text(f);
    fflush(stdout);
}

/* ---- reading back what figure_print_json wrote ---- */

/* The text after "name":, or "" if there is no such field. */
static const char *figure_find_field(const char *line, const char *name)
{
    char head[32];
    snprintf(head, sizeof head, "\"%s\":", name);
    const char *at = strstr(line, head);
    return at == NULL ? "" : at + strlen(head);
}

static void figure_text_field(const char *line, const char *name, char *out, size_t size)
{
    const char *at = figure_find_field(line, name);
    if (*at == '"')
        at++;
    snprintf(out, size, "%.*s", (int)strcspn(at, "\""), at);
}

static void figure_read_bar(bench_figure *f, const char *bar)
{
    f->bar_kind = BENCH_INTEREST;
    /* The longer words first: one of them begins with another. */
    for (int how = BENCH_RATIO_MOST; how <= BENCH_MOST && f->bar_kind == BENCH_INTEREST; how++) {
        size_t length = strlen(words[how]);
        if (strncmp(bar, words[how], length) == 0) {
            f->bar_kind = (bench_bar_kind)how;
            f->bar = strtod(bar + length, NULL);
        }
    }
}

void bench_read(const char *path)
{
    char line[1024], bar[64];
    FILE *in = fopen(path, "r");
    if (in == NULL)
        bench_die(path, "cannot be read");
    while (figure_count < MOST && fgets(line, sizeof line, in) != NULL) {
        bench_figure *f = &figures[figure_count++];
        figure_text_field(line, "store", f->store, sizeof f->store);
        figure_text_field(line, "figure", f->name, sizeof f->name);
        figure_text_field(line, "unit", f->unit, sizeof f->unit);
        figure_text_field(line, "against", f->against, sizeof f->against);
        figure_text_field(line, "bar", bar, sizeof bar);
        f->measured = strtod(figure_find_field(line, "measured"), NULL);
        f->limit = strtod(figure_find_field(line, "limit"), NULL);
        f->ratio = strtod(figure_find_field(line, "ratio"), NULL);
        const char *spread = figure_find_field(line, "spread");
        char *rest = NULL;
        f->low = *spread == '[' ? strtod(spread + 1, &rest) : 0;
        f->high = rest != NULL && *rest == ',' ? strtod(rest + 1, NULL) : f->low;
        f->repetitions = (int)strtol(figure_find_field(line, "repetitions"), NULL, 10);
        figure_read_bar(f, bar);
        f->holds = figure_holds(f);
    }
    fclose(in);
}

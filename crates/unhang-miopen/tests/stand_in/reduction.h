// Reductions of every kind along axes of every number of them, in single and double precision, with gaps, with and without indices and NaN.
enum { RED = 4000 };
typedef union { float single[RED]; double wide[RED]; } Numbers;
typedef struct { Numbers x, y; int32_t indices[RED]; } Reduced;
#ifdef REAL_HIP
static Reduced *reduced_room(void) { void *it = 0; return hipHostMalloc(&it, sizeof(Reduced), 0) == 0 ? it : 0; }
#else
static Reduced *reduced_room(void) { return malloc(sizeof(Reduced)); }
#endif
static double number_at(const Numbers *all, int wide, int i) { return wide ? all->wide[i] : all->single[i]; }
static void set_number(Numbers *all, int wide, int i, double to) { if (wide) all->wide[i] = to; else all->single[i] = (float)to; }
// Axes, their sizes, which of them are reduced (a bit for each), and elements between rows.
static const struct { int axes, sizes[6], reduced, gap; } reduced_shapes[] = {
    {1, {60}, 1, 0}, {1, {3000}, 1, 0}, {3, {5, 4, 6}, 7, 1}, {4, {2, 3, 4, 5}, 13, 0}, {4, {2, 3, 4, 5}, 8, 3}, {4, {3, 1, 40, 8}, 4, 0},
    {5, {3, 2, 2, 3, 4}, 5, 1}, {6, {2, 3, 2, 2, 3, 2}, 42, 1},
};

static int reduce_one(Reduced *o, P handle, P what, P xt, P yt, int shape, int op, int turn) {
    const int axes = reduced_shapes[shape].axes, bits = reduced_shapes[shape].reduced, gap = reduced_shapes[shape].gap, *sizes = reduced_shapes[shape].sizes;
    const int wide = turn % 3 == 2, propagates = turn % 2, extreme = op >= 2 && op <= 4, with_indices = extreme && turn != 1, adds = turn == 1;
    int results[6], xl[6], yl[6], all = 1, count = 1, x_end = 1, y_end = 1;
    static double want[RED];
    static int places[RED];
    for (int i = axes - 1; i >= 0; i--) {
        results[i] = bits >> i & 1 ? 1 : sizes[i], xl[i] = x_end, yl[i] = y_end;
        x_end = x_end * sizes[i] + (i == axes - 1 ? gap : 0), y_end = y_end * results[i] + (i == axes - 1 ? gap : 0);
        all *= sizes[i], count *= bits >> i & 1 ? sizes[i] : 1;
    }
    CALL(miopenSetTensorDescriptor, xt, wide ? 6 : 1, axes, sizes, xl), CALL(miopenSetTensorDescriptor, yt, wide ? 6 : 1, axes, results, yl);
    CALL(miopenSetReduceTensorDescriptor, what, op, wide || turn == 3 ? 6 : 1, propagates, with_indices, 0);
    // Products of numbers near 1; few different ones otherwise, so that several are the largest.
    for (int i = 0; i < RED; i++) {
        double v = (double)(i * 37 % 23 - 11) / 8;
        set_number(&o->x, wide, i, op == 1 ? 1 + v / 64 : extreme && (turn + shape) % 3 && i % 29 == 5 ? NAN : v);
        set_number(&o->y, wide, i, i % 7), o->indices[i] = -7, want[i] = i % 7, places[i] = -7;
    }
    static double sums[RED];
    static char seen[RED];
    memset(seen, 0, sizeof seen);
    for (int flat = 0; flat < all; flat++) {
        int from = 0, to = 0, element = 0, element_step = 1;
        for (int i = axes - 1, rest = flat; i >= 0; rest /= sizes[i--]) {
            int at = rest % sizes[i];
            from += at * xl[i];
            if (bits >> i & 1) element += at * element_step, element_step *= sizes[i]; else to += at * yl[i];
        }
        double v = number_at(&o->x, wide, from), *sum = &sums[to];
        if (!seen[to]) seen[to] = 1, *sum = op == 1 ? 1 : op == 2 ? INFINITY : op == 3 ? -INFINITY : 0, places[to] = with_indices ? 0 : -7;
        if (op == 4 || op == 6) v = fabs(v);
        int next = (propagates && isnan(v)) || (op == 2 ? v < *sum : v > *sum);
        if (!extreme) *sum = op == 1 ? *sum * v : *sum + (op == 7 ? v * v : v);
        else if (next) *sum = v, places[to] = with_indices ? element : -7;
    }
    const double alpha = adds ? 0.5 : 1, beta = adds ? 2 : 0;
    const float small[2] = {(float)alpha, (float)beta};
    for (int i = 0; i < RED; i++) if (seen[i]) want[i] = alpha * (op == 5 ? sums[i] / count : op == 7 ? root(sums[i]) : sums[i]) + (adds ? beta * want[i] : 0);
    const size_t bytes = (size_t)(y_end + 8) * 4;
    const void *first = wide ? (const void *)&alpha : &small[0], *second = wide ? (const void *)&beta : &small[1];
    CHECK(CALL(miopenReduceTensor, handle, what, o->indices, bytes, (P)0, (size_t)0, first, xt, &o->x, second, yt, &o->y) == 0);
    settle();
    for (int i = 0; i < RED; i++) {
        double got = number_at(&o->y, wide, i);
        int right = (isnan(got) && isnan(want[i])) || got == want[i] || fabs(got - want[i]) <= 1e-4 * (1 + fabs(want[i]));
        if (!right || o->indices[i] != places[i])
            fprintf(stderr, "shape %d, operation %d, turn %d: element %d is %g at %d, should be %g at %d\n", shape, op, turn, i, got, o->indices[i], want[i], places[i]);
        CHECK(right && o->indices[i] == places[i]);
    }
    if (!with_indices) return 0;
    // Without a place for indices, and with too small a one.
    CHECK(CALL(miopenReduceTensor, handle, what, (P)0, bytes, (P)0, (size_t)0, first, xt, &o->x, second, yt, &o->y) == 3);
    CHECK(CALL(miopenReduceTensor, handle, what, o->indices, (size_t)3, (P)0, (size_t)0, first, xt, &o->x, second, yt, &o->y) == 3);
    return 0;
}
static int reductions(void) {
    Case *place = room();
    Reduced *o = reduced_room();
    CHECK(place != NULL && o != NULL);
    int line = prepare(place, 0);
    if (line) return line;
    P what = 0, xt = 0, yt = 0, handle = place->handle;
    CALL(miopenCreateReduceTensorDescriptor, &what), CALL(miopenCreateTensorDescriptor, &xt), CALL(miopenCreateTensorDescriptor, &yt);
    for (int shape = 0; shape < (int)(sizeof reduced_shapes / sizeof *reduced_shapes); shape++) for (int op = 0; op < 8; op++) for (int turn = 0; turn < 4; turn++)
        if ((line = reduce_one(o, handle, what, xt, yt, shape, op, turn))) return line;
    const float one = 1, zero = 0;
    const int sizes[3] = {2, 3, 4}, strides[3] = {12, 4, 1}, fewer[3] = {1, 3, 1};
    CALL(miopenSetReduceTensorDescriptor, what, 0, 1, 0, 0, 0), CALL(miopenSetTensorDescriptor, xt, 1, 3, sizes, strides);
    CALL(miopenSetTensorDescriptor, yt, 1, 3, fewer, strides);
    CHECK(CALL(miopenReduceTensor, handle, what, (P)0, (size_t)0, (P)0, (size_t)0, &one, xt, (P)0, &zero, yt, &o->y) == 3);
    CHECK(CALL(miopenReduceTensor, handle, what, (P)0, (size_t)0, (P)0, (size_t)0, (P)0, xt, &o->x, &zero, yt, &o->y) == 3);
    CHECK(CALL(miopenReduceTensor, handle, what, (P)0, (size_t)0, (P)0, (size_t)0, &one, xt, &o->x, &zero, yt, &o->y) == 0);
    settle();
    // Nothing is reduced, and integers: MIOpen answers that itself.
    CALL(miopenSetTensorDescriptor, yt, 1, 3, sizes, strides);
    CHECK(CALL(miopenReduceTensor, handle, what, (P)0, (size_t)0, (P)0, (size_t)0, &one, xt, &o->x, &zero, yt, &o->y) == 42);
    CALL(miopenSetTensorDescriptor, xt, 3, 3, sizes, strides), CALL(miopenSetTensorDescriptor, yt, 3, 3, fewer, strides);
    CHECK(CALL(miopenReduceTensor, handle, what, (P)0, (size_t)0, (P)0, (size_t)0, &one, xt, &o->x, &zero, yt, &o->y) == 42);
    return 0;
}

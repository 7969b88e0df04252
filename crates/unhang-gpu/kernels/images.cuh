// Where numbers lie in an image of either layout. Shapes have `channels`, `height` and `width`; constant: CHANNELS_LAST.

// Where an image's channel begins, and from one column to the next.
template <typename Shape>
DEVICE unsigned plane_begin(const Shape& s, int n, int channel) {
#if CHANNELS_LAST
    return (unsigned)n * (unsigned)(s.height * s.width) * (unsigned)s.channels + (unsigned)channel;
#else
    return (unsigned)(n * s.channels + channel) * (unsigned)(s.height * s.width);
#endif
}
#define COLUMN_STEP(s) (CHANNELS_LAST ? (unsigned)(s).channels : 1u)

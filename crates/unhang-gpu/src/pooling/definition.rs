//! Pooling: its definition in f64, which judges every kernel and computes where none may run.

/// What is made of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolingKind {
    /// Its largest element. NaN is never the largest; of NaN alone it is minus infinity.
    Largest,
    /// The mean of what is in the image.
    Mean,
    /// The sum of what is in the image, divided by the size of the whole window.
    InclusiveMean,
}

/// The sizes of a pooling. Tensors are images, channels, depth, height and width, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Pooling {
    pub kind: PoolingKind,
    pub batch: usize,
    pub channels: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
    pub window: [usize; 3],
    pub stride: [usize; 3],
    pub padding: [usize; 3],
    /// Whether an index counts the taps of its window, else the elements of its image.
    pub index_in_window: bool,
}

/// What of a window is in the image along one axis: its first tap there, and elements from one to before another.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: i64,
    begin: usize,
    end: usize,
}

impl Pooling {
    /// Elements of x.
    pub fn inputs(&self) -> usize {
        self.batch * self.channels * self.input.iter().product::<usize>()
    }

    /// Elements of y.
    pub fn outputs(&self) -> usize {
        self.batch * self.channels * self.output.iter().product::<usize>()
    }

    /// Elements of a window.
    pub fn taps(&self) -> usize {
        self.window.iter().product()
    }

    /// How many values an index can have.
    pub fn indices(&self) -> usize {
        if self.index_in_window { self.taps() } else { self.input.iter().product() }
    }

    fn span(&self, axis: usize, output: usize) -> Span {
        let start = (output * self.stride[axis]) as i64 - self.padding[axis] as i64;
        let end = (start + self.window[axis] as i64).min(self.input[axis] as i64).max(0);
        Span { start, begin: start.max(0) as usize, end: end as usize }
    }

    /// Visits every window: where it is in y, its plane of x, and what of it is in the image.
    fn each_window(&self, mut visit: impl FnMut(usize, usize, [Span; 3])) {
        let [depth, height, width] = self.output;
        let mut at = 0;
        for plane in 0..self.batch * self.channels {
            for d in 0..depth {
                for h in 0..height {
                    for w in 0..width {
                        visit(at, plane, [self.span(0, d), self.span(1, h), self.span(2, w)]);
                        at += 1;
                    }
                }
            }
        }
    }

    /// Visits the elements of a window: where each is in x, and its index.
    fn each_element(&self, plane: usize, [d, h, w]: [Span; 3], mut visit: impl FnMut(usize, u64)) {
        let [depth, height, width] = self.input;
        for i in d.begin..d.end {
            for j in h.begin..h.end {
                for k in w.begin..w.end {
                    let index = if self.index_in_window {
                        let tap = [(i, d), (j, h), (k, w)].map(|(at, span)| (at as i64 - span.start) as usize);
                        (tap[0] * self.window[1] + tap[1]) * self.window[2] + tap[2]
                    } else {
                        (i * height + j) * width + k
                    };
                    visit(((plane * depth + i) * height + j) * width + k, index as u64);
                }
            }
        }
    }

    fn divisor(&self, spans: [Span; 3]) -> f64 {
        let inside: usize = spans.iter().map(|span| span.end.saturating_sub(span.begin)).product();
        match self.kind {
            PoolingKind::Largest => 1.0,
            PoolingKind::Mean => inside.max(1) as f64,
            PoolingKind::InclusiveMean => self.taps() as f64,
        }
    }

    /// y, and the index of the largest element of each window; the first of several. 0 where a window has none.
    pub fn forward(&self, x: &[f64]) -> (Vec<f64>, Vec<u64>) {
        let (mut y, mut indices) = (vec![0.0; self.outputs()], vec![0; self.outputs()]);
        self.each_window(|at, plane, spans| {
            if self.kind == PoolingKind::Largest {
                let mut best: Option<(f64, u64)> = None;
                self.each_element(plane, spans, |place, index| {
                    let before = best.unwrap_or((f64::NEG_INFINITY, index));
                    best = Some(if x[place] > before.0 { (x[place], index) } else { before });
                });
                (y[at], indices[at]) = best.unwrap_or((f64::NEG_INFINITY, 0));
            } else {
                let mut sum = 0.0;
                self.each_element(plane, spans, |place, _| sum += x[place]);
                y[at] = sum / self.divisor(spans);
            }
        });
        (y, indices)
    }

    /// The gradient of x. Indices are those of the largest elements, and not looked at otherwise.
    pub fn backward(&self, dy: &[f64], indices: &[u64]) -> Vec<f64> {
        let mut dx = vec![0.0; self.inputs()];
        self.each_window(|at, plane, spans| {
            let share = dy[at] / self.divisor(spans);
            self.each_element(plane, spans, |place, index| {
                if self.kind != PoolingKind::Largest || indices[at] == index {
                    dx[place] += share;
                }
            });
        });
        dx
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 plane of 3×4, windows of 2×3 with stride 2×1 and padding 1×1.
    fn small(kind: PoolingKind, index_in_window: bool) -> Pooling {
        Pooling {
            kind,
            batch: 1,
            channels: 1,
            input: [1, 3, 4],
            output: [1, 2, 4],
            window: [1, 2, 3],
            stride: [1, 2, 1],
            padding: [0, 1, 1],
            index_in_window,
        }
    }

    #[test]
    fn a_small_image_is_pooled_as_by_hand() {
        let x = [1.0, 5.0, 2.0, 0.0, 7.0, 3.0, 4.0, 4.0, 6.0, 8.0, 9.0, -1.0];
        let (y, indices) = small(PoolingKind::Largest, false).forward(&x);
        assert_eq!(y, [5.0, 5.0, 5.0, 2.0, 8.0, 9.0, 9.0, 9.0]);
        assert_eq!(indices, [1, 1, 1, 2, 9, 10, 10, 10]);
        let (_, taps) = small(PoolingKind::Largest, true).forward(&x);
        assert_eq!(taps, [5, 4, 3, 3, 5, 5, 4, 3]);
        let dy = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
        let by_image = small(PoolingKind::Largest, false).backward(&dy, &indices);
        assert_eq!(by_image, [0.0, 7.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 16.0, 224.0, 0.0]);
        assert_eq!(small(PoolingKind::Largest, true).backward(&dy, &taps), by_image);
    }

    #[test]
    fn means_are_over_what_is_there_or_over_the_whole_window() {
        let x = [1.0, 5.0, 2.0, 0.0, 7.0, 3.0, 4.0, 4.0, 6.0, 8.0, 9.0, -1.0];
        let (y, _) = small(PoolingKind::Mean, false).forward(&x);
        assert_eq!((y[0], y[1], y[5]), (3.0, 8.0 / 3.0, 37.0 / 6.0));
        let (y, _) = small(PoolingKind::InclusiveMean, false).forward(&x);
        assert_eq!((y[0], y[1], y[5]), (1.0, 8.0 / 6.0, 37.0 / 6.0));
        let dx = small(PoolingKind::Mean, false).backward(&[6.0; 8], &[]);
        assert_eq!((dx[0], dx[11]), (3.0 + 2.0, 1.0 + 1.5));
        assert_eq!(small(PoolingKind::InclusiveMean, false).backward(&[6.0; 8], &[])[0], 2.0);
    }

    #[test]
    fn windows_without_numbers_or_elements_have_an_end() {
        let outside = Pooling { padding: [0, 3, 1], ..small(PoolingKind::Largest, true) };
        let (y, indices) = outside.forward(&[f64::NAN; 12]);
        assert_eq!((y[0], indices[0]), (f64::NEG_INFINITY, 0));
        let (y, _) = Pooling { kind: PoolingKind::Mean, ..outside }.forward(&[1.0; 12]);
        assert_eq!((y[0], y[4]), (0.0, 1.0));
        let (y, indices) = small(PoolingKind::Largest, false).forward(&[f64::NEG_INFINITY; 12]);
        assert_eq!((y[5], indices[5]), (f64::NEG_INFINITY, 4));
    }
}

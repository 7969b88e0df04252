//! Batch normalisation and activations: their definitions in f64, which judge every kernel and compute if none may run.

/// A function of each element.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Activation {
    /// Which one.
    pub kind: ActivationKind,
    /// Its first parameter; each kind says what it means, and most have none.
    pub alpha: f64,
    /// Its second.
    pub beta: f64,
    /// Its third.
    pub gamma: f64,
}

/// The functions that MIOpen knows, in the order of its `miopenActivationMode_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ActivationKind {
    /// x.
    #[default]
    Identity,
    /// 1 / (1 + e⁻ˣ).
    Logistic,
    /// beta × tanh(alpha × x).
    Tanh,
    /// max(0, x).
    Relu,
    /// log(1 + eˣ).
    SoftRelu,
    /// |x|.
    Abs,
    /// (alpha + beta × x) to the power of gamma, and 0 where that base is not positive.
    Power,
    /// min(alpha, max(0, x)).
    ClippedRelu,
    /// x, below 0 alpha × x.
    LeakyRelu,
    /// x, below 0 alpha × (eˣ - 1).
    Elu,
    /// max(alpha, min(beta, x)).
    Clamp,
}

impl ActivationKind {
    /// All of them, each at its number.
    pub const ALL: [ActivationKind; 11] = [
        ActivationKind::Identity,
        ActivationKind::Logistic,
        ActivationKind::Tanh,
        ActivationKind::Relu,
        ActivationKind::SoftRelu,
        ActivationKind::Abs,
        ActivationKind::Power,
        ActivationKind::ClippedRelu,
        ActivationKind::LeakyRelu,
        ActivationKind::Elu,
        ActivationKind::Clamp,
    ];
}

impl Activation {
    /// The function at x.
    pub fn value(&self, x: f64) -> f64 {
        let Activation { kind, alpha, beta, gamma } = *self;
        match kind {
            ActivationKind::Identity => x,
            ActivationKind::Logistic => 1.0 / (1.0 + (-x).exp()),
            ActivationKind::Tanh => beta * (alpha * x).tanh(),
            ActivationKind::Relu => {
                if x > 0.0 {
                    x
                } else {
                    0.0
                }
            }
            ActivationKind::SoftRelu => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            ActivationKind::Abs => x.abs(),
            ActivationKind::Power => match alpha + beta * x {
                base if base > 0.0 => base.powf(gamma),
                _ => 0.0,
            },
            ActivationKind::ClippedRelu => x.max(0.0).min(alpha),
            ActivationKind::LeakyRelu => {
                if x > 0.0 {
                    x
                } else {
                    alpha * x
                }
            }
            ActivationKind::Elu => {
                if x > 0.0 {
                    x
                } else {
                    alpha * (x.exp() - 1.0)
                }
            }
            ActivationKind::Clamp => x.min(beta).max(alpha),
        }
    }

    /// Its derivative at x; at a corner that of the left side.
    pub fn slope(&self, x: f64) -> f64 {
        let Activation { kind, alpha, beta, gamma } = *self;
        let where_positive = |otherwise: f64| if x > 0.0 { 1.0 } else { otherwise };
        let inside = |low: f64, high: f64| f64::from(u8::from(x > low && x <= high));
        match kind {
            ActivationKind::Identity => 1.0,
            ActivationKind::Logistic => self.value(x) * (1.0 - self.value(x)),
            ActivationKind::Tanh => alpha * beta * (1.0 - (alpha * x).tanh().powi(2)),
            ActivationKind::Relu => where_positive(0.0),
            ActivationKind::SoftRelu => 1.0 / (1.0 + (-x).exp()),
            ActivationKind::Abs => where_positive(-1.0),
            ActivationKind::Power => match alpha + beta * x {
                base if base > 0.0 => beta * gamma * base.powf(gamma - 1.0),
                _ => 0.0,
            },
            ActivationKind::ClippedRelu => inside(0.0, alpha),
            ActivationKind::LeakyRelu => where_positive(alpha),
            ActivationKind::Elu => where_positive(alpha * x.exp()),
            ActivationKind::Clamp => inside(alpha, beta),
        }
    }
}

/// A batch normalisation's sizes. Its tensors are `[image][channel][pixel]`, whatever the axes of space are; a *unit* is what has one mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Normalization {
    /// Images.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Pixels of an image.
    pub pixels: usize,
    /// Whether each pixel of each channel is a unit, and not the channel.
    pub per_activation: bool,
}

/// The statistics that normalise each unit.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a> {
    /// Its mean.
    pub mean: &'a [f64],
    /// One over its standard deviation.
    pub inverse: &'a [f64],
    /// What it is multiplied with.
    pub scale: &'a [f64],
    /// What is added.
    pub bias: &'a [f64],
}

/// The gradients of a normalisation.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients {
    /// Of x.
    pub x: Vec<f64>,
    /// Of each unit's scale.
    pub scale: Vec<f64>,
    /// Of each unit's bias.
    pub bias: Vec<f64>,
}

impl Normalization {
    /// Elements of a tensor.
    pub fn elements(&self) -> usize {
        self.batch * self.channels * self.pixels
    }

    /// How many means there are.
    pub fn units(&self) -> usize {
        if self.per_activation { self.channels * self.pixels } else { self.channels }
    }

    /// Elements of a unit.
    pub fn count(&self) -> usize {
        if self.per_activation { self.batch } else { self.batch * self.pixels }
    }

    /// The unit of an element.
    pub fn unit_of(&self, at: usize) -> usize {
        let position = at % (self.channels * self.pixels);
        if self.per_activation { position } else { position / self.pixels }
    }

    /// Mean and variance of every unit, the variance by the number of elements.
    pub fn statistics(&self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let count = self.count() as f64;
        let mut mean = vec![0.0; self.units()];
        x.iter().enumerate().for_each(|(at, x)| mean[self.unit_of(at)] += x / count);
        let mut variance = vec![0.0; self.units()];
        for (at, x) in x.iter().enumerate() {
            let unit = self.unit_of(at);
            variance[unit] += (x - mean[unit]).powi(2) / count;
        }
        (mean, variance)
    }

    /// Turns a variance of the sample into one of the population, which running variances are.
    pub fn unbiased(&self) -> f64 {
        match self.count() {
            1 => 1.0,
            count => count as f64 / (count - 1) as f64,
        }
    }

    /// The result for every element.
    pub fn forward(&self, x: &[f64], by: Affine<'_>, activation: &Activation) -> Vec<f64> {
        let one = |(at, x): (usize, &f64)| {
            let unit = self.unit_of(at);
            activation.value((x - by.mean[unit]) * by.inverse[unit] * by.scale[unit] + by.bias[unit])
        };
        x.iter().enumerate().map(one).collect()
    }

    /// The gradients, for a result that was normalised by its own mean and variance.
    pub fn backward(&self, x: &[f64], dy: &[f64], by: Affine<'_>, activation: &Activation) -> Gradients {
        let count = self.count() as f64;
        let normalized = |at: usize| (x[at] - by.mean[self.unit_of(at)]) * by.inverse[self.unit_of(at)];
        let through = |at: usize| {
            let unit = self.unit_of(at);
            dy[at] * activation.slope(normalized(at) * by.scale[unit] + by.bias[unit])
        };
        let (mut scale, mut bias) = (vec![0.0; self.units()], vec![0.0; self.units()]);
        for at in 0..x.len() {
            scale[self.unit_of(at)] += through(at) * normalized(at);
            bias[self.unit_of(at)] += through(at);
        }
        let dx = |at: usize| {
            let unit = self.unit_of(at);
            let rest = (bias[unit] + normalized(at) * scale[unit]) / count;
            by.scale[unit] * by.inverse[unit] * (through(at) - rest)
        };
        Gradients { x: (0..x.len()).map(dx).collect(), scale, bias }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: [Normalization; 2] = [
        Normalization { batch: 3, channels: 2, pixels: 4, per_activation: false },
        Normalization { batch: 5, channels: 2, pixels: 3, per_activation: true },
    ];

    fn numbers(count: usize, seed: usize) -> Vec<f64> {
        (0..count).map(|at| ((at * 37 + seed * 11) % 23) as f64 / 7.0 - 1.5).collect()
    }

    /// The loss Σ y × weight, for the same numbers each time.
    fn loss(sizes: &Normalization, x: &[f64], scale: &[f64], bias: &[f64], activation: &Activation) -> f64 {
        let (mean, variance) = sizes.statistics(x);
        let inverse: Vec<f64> = variance.iter().map(|it| 1.0 / (it + 1e-3).sqrt()).collect();
        let y = sizes.forward(x, Affine { mean: &mean, inverse: &inverse, scale, bias }, activation);
        y.iter().zip(numbers(y.len(), 5)).map(|(y, weight)| y * weight).sum()
    }

    #[test]
    fn a_normalised_unit_has_mean_zero_and_variance_one() {
        for sizes in SMALL {
            let x = numbers(sizes.elements(), 1);
            let (mean, variance) = sizes.statistics(&x);
            let inverse: Vec<f64> = variance.iter().map(|it| 1.0 / it.sqrt()).collect();
            let (ones, zeros) = (vec![1.0; sizes.units()], vec![0.0; sizes.units()]);
            let by = Affine { mean: &mean, inverse: &inverse, scale: &ones, bias: &zeros };
            let (mean, variance) = sizes.statistics(&sizes.forward(&x, by, &Activation::default()));
            assert!(mean.iter().all(|it| it.abs() < 1e-12) && variance.iter().all(|it| (it - 1.0).abs() < 1e-12));
        }
    }

    #[test]
    fn gradients_are_the_slopes_of_the_forward_direction() {
        for sizes in SMALL {
            for kind in ActivationKind::ALL {
                let activation = Activation { kind, alpha: 0.7, beta: 1.3, gamma: 1.9 };
                let (mut x, scale, bias) =
                    (numbers(sizes.elements(), 1), numbers(sizes.units(), 2), numbers(sizes.units(), 3));
                let (mean, variance) = sizes.statistics(&x);
                let inverse: Vec<f64> = variance.iter().map(|it| 1.0 / (it + 1e-3).sqrt()).collect();
                let by = Affine { mean: &mean, inverse: &inverse, scale: &scale, bias: &bias };
                let found = sizes.backward(&x, &numbers(x.len(), 5), by, &activation);
                let step = 1e-6;
                for at in 0..x.len() {
                    let was = x[at];
                    x[at] = was + step;
                    let more = loss(&sizes, &x, &scale, &bias, &activation);
                    x[at] = was - step;
                    let slope = (more - loss(&sizes, &x, &scale, &bias, &activation)) / (2.0 * step);
                    x[at] = was;
                    assert!((slope - found.x[at]).abs() < 1e-5, "{kind:?} x {at}: {slope} {}", found.x[at]);
                }
                for unit in 0..sizes.units() {
                    let moved = |by: f64, which: usize| {
                        let (mut scale, mut bias) = (scale.clone(), bias.clone());
                        [&mut scale, &mut bias][which][unit] += by;
                        loss(&sizes, &x, &scale, &bias, &activation)
                    };
                    for (which, found) in [found.scale[unit], found.bias[unit]].into_iter().enumerate() {
                        let slope = (moved(step, which) - moved(-step, which)) / (2.0 * step);
                        assert!((slope - found).abs() < 1e-5, "{kind:?} parameter {which}: {slope} {found}");
                    }
                }
            }
        }
    }
}

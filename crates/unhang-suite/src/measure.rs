//! The benchmark harness: contenders take turns in one run, and what is reported is a ratio with its spread.
//!
//! Machines are noisy: a figure taken alone says little, and two taken minutes apart say less. Here every round times
//! each contender once, in an order that is turned by one each round; a ratio is the median over rounds of the times
//! within the same round, and its spread the 10th and 90th percentile of the same.

use std::time::{Duration, Instant};

/// Something to be timed.
pub struct Contender<'a> {
    /// Its name in the table.
    pub name: String,
    /// One call of it.
    pub call: Box<dyn FnMut() + 'a>,
}

impl<'a> Contender<'a> {
    /// A contender with a name.
    pub fn new(name: impl Into<String>, call: impl FnMut() + 'a) -> Contender<'a> {
        Contender { name: name.into(), call: Box::new(call) }
    }
}

/// The times of one contender, one for each round, in seconds.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// Its name in the table.
    pub name: String,
    /// Seconds for one call, round by round.
    pub seconds: Vec<f64>,
}

/// How many times as fast one contender is as another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The median over rounds.
    pub median: f64,
    /// The 10th percentile.
    pub low: f64,
    /// The 90th percentile.
    pub high: f64,
}

impl Measurement {
    /// The median time in seconds.
    pub fn median(&self) -> f64 {
        quantile(&self.seconds, 0.5)
    }

    /// How many times as fast this is as `other`, compared round by round.
    pub fn speed_against(&self, other: &Measurement) -> Ratio {
        let ratios: Vec<f64> = other.seconds.iter().zip(&self.seconds).map(|(theirs, ours)| theirs / ours).collect();
        Ratio { median: quantile(&ratios, 0.5), low: quantile(&ratios, 0.1), high: quantile(&ratios, 0.9) }
    }
}

/// Times the contenders in turn for `rounds` rounds; in each, a contender is called until `at_least` has passed.
pub fn interleave(contenders: &mut [Contender<'_>], rounds: usize, at_least: Duration) -> Vec<Measurement> {
    let mut measurements: Vec<Measurement> =
        contenders.iter().map(|c| Measurement { name: c.name.clone(), seconds: Vec::new() }).collect();
    let count = contenders.len();
    for contender in contenders.iter_mut() {
        (contender.call)();
    }
    for round in 0..rounds {
        for turn in 0..count {
            let index = (round + turn) % count;
            let started = Instant::now();
            let mut calls = 0u32;
            while calls == 0 || started.elapsed() < at_least {
                (contenders[index].call)();
                calls += 1;
            }
            measurements[index].seconds.push(started.elapsed().as_secs_f64() / f64::from(calls));
        }
    }
    measurements
}

/// The geometric mean: what ratios are averaged with.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let logarithms: Vec<f64> = values.into_iter().map(f64::ln).collect();
    (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp()
}

fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = part * (sorted.len().saturating_sub(1)) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    match (sorted.get(below), sorted.get(above)) {
        (Some(low), Some(high)) => low + (high - low) * position.fract(),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_compares_within_rounds() {
        let ours = Measurement { name: "ours".into(), seconds: vec![1.0, 10.0, 2.0] };
        let theirs = Measurement { name: "theirs".into(), seconds: vec![2.0, 20.0, 4.0] };
        assert_eq!(ours.speed_against(&theirs), Ratio { median: 2.0, low: 2.0, high: 2.0 });
    }

    #[test]
    fn contenders_take_turns() {
        let order = std::cell::RefCell::new(String::new());
        let mut contenders = [
            Contender::new("a", || order.borrow_mut().push('a')),
            Contender::new("b", || order.borrow_mut().push('b')),
        ];
        let measured = interleave(&mut contenders, 2, Duration::ZERO);
        assert_eq!(measured[0].seconds.len(), 2);
        drop(contenders);
        // One warm-up each, then the order turns every round.
        assert_eq!(order.into_inner(), "ababba");
    }

    #[test]
    fn geometric_means_multiply() {
        assert!((geometric_mean([1.0, 4.0]) - 2.0).abs() < 1e-12);
    }
}

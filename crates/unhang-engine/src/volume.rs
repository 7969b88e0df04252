//! 3-d convolutions by an engine that computes 2-d ones.

use unhang_conv::{Direction, Layout, Loops, Planes, Volume};

use crate::operands::Typed;
use crate::{Elements, ElementsMut, Engine, EngineError, Operands};

/// Computes a 3-d convolution with any engine, by [`Volume::fold`]. Tensors have the convolution's layout, without
/// gaps. The gathered planes take at most a few times the memory of the operands.
pub fn run_volume(engine: &dyn Engine, volume: &Volume, operands: Operands<'_>) -> Result<(), EngineError> {
    let lengths = volume.operand_shapes().map(|shape| shape.iter().product());
    let bias = if volume.direction() == Direction::Forward { volume.out_channels() } else { 0 };
    operands.check(lengths, bias, volume.data_type(), volume)?;
    run_within(engine, volume, operands, volume.fold_limit())
}

/// Computes it in parts of at most `limit` elements.
fn run_within(engine: &dyn Engine, volume: &Volume, operands: Operands<'_>, limit: usize) -> Result<(), EngineError> {
    macro_rules! typed {
        ($($variant:ident),*) => {
            match (operands.first, operands.second, operands.result) {
                $((Elements::$variant(first), Elements::$variant(second), ElementsMut::$variant(result)) => {
                    let bias = operands.bias.map(|bias| match bias {
                        Elements::$variant(bias) => bias,
                        _ => unreachable!("operands were validated"),
                    });
                    Folded { engine, volume, given: [first, second], bias }.run(result, limit)
                })*
                _ => unreachable!("operands were validated"),
            }
        };
    }
    typed!(F32, F16, Bf16, F64)
}

struct Folded<'a, T> {
    engine: &'a dyn Engine,
    volume: &'a Volume,
    given: [&'a [T]; 2],
    bias: Option<&'a [T]>,
}

/// Gathered planes of an operand, and which ones they are.
#[derive(Default)]
struct Gathered<T> {
    planes: Option<Planes>,
    elements: Vec<T>,
}

impl<T: Typed> Folded<'_, T> {
    fn run(&self, result: &mut [T], limit: usize) -> Result<(), EngineError> {
        let Folded { engine, volume, given, .. } = self;
        let bias = self.bias.map(T::elements);
        let layout = volume.layout();
        let strides = volume.operand_shapes().map(|shape| Volume::dense_strides(shape, layout));
        let failed = |error: unhang_conv::ProblemError| EngineError::Failed {
            engine: engine.name(),
            message: format!("a part of {volume} is not a convolution: {error}"),
        };
        let fold = volume.fold(limit).map_err(failed)?;
        let mut gathered: [Gathered<T>; 2] = Default::default();
        let mut computed = Vec::new();
        for part in &fold.parts {
            let problem = &part.problem;
            for (index, kept) in gathered.iter_mut().enumerate() {
                let (which, planes) = (fold.order[index], part.planes[index]);
                // Parts may share an operand.
                if planes.dense(strides[which], layout).is_none() && kept.planes != Some(planes) {
                    kept.planes = None;
                    self.resize(&mut kept.elements, &planes)?;
                    gather(given[which], &loops(&planes, strides[which], layout), &mut kept.elements);
                    kept.planes = Some(planes);
                }
            }
            let operand = |index: usize| {
                let (which, planes) = (fold.order[index], part.planes[index]);
                let length = planes.shape().iter().product::<usize>();
                match planes.dense(strides[which], layout) {
                    Some(start) => &given[which][start..start + length],
                    None => &gathered[index].elements[..],
                }
            };
            let (first, second) = (T::elements(operand(0)), T::elements(operand(1)));
            let planes = &part.planes[2];
            if let Some(start) = planes.dense(strides[2], layout) {
                let length = planes.shape().iter().product::<usize>();
                let result = T::elements_mut(&mut result[start..start + length]);
                engine.run(problem, Operands { first, second, bias, result })?;
            } else {
                self.resize(&mut computed, planes)?;
                let operands = Operands { first, second, bias, result: T::elements_mut(&mut computed) };
                engine.run(problem, operands)?;
                scatter(&computed, &loops(planes, strides[2], layout), result);
            }
        }
        for planes in &fold.zeros {
            self.resize(&mut computed, planes)?;
            let (shape, at) = (planes.shape(), layout.strides(planes.shape()));
            for (index, element) in computed.iter_mut().enumerate() {
                *element = self.bias.map_or(T::default(), |bias| bias[index / at[1] % shape[1]]);
            }
            scatter(&computed, &loops(planes, strides[2], layout), result);
        }
        Ok(())
    }

    fn resize(&self, elements: &mut Vec<T>, planes: &Planes) -> Result<(), EngineError> {
        let length = planes.shape().iter().product::<usize>();
        elements.truncate(length);
        if elements.try_reserve_exact(length - elements.len()).is_err() {
            return Err(EngineError::OutOfMemory { engine: self.engine.name(), bytes: length * size_of::<T>() });
        }
        elements.resize(length, T::default());
        Ok(())
    }
}

fn loops(planes: &Planes, strides: [usize; 5], layout: Layout) -> Loops {
    planes.loops(layout.strides(planes.shape()), strides, false)
}

/// Fills a 2-d tensor with planes of a 3-d one.
fn gather<T: Typed>(from: &[T], loops: &Loops, to: &mut [T]) {
    loops.visit(|folded, volume, (count, step, far)| match volume {
        Some(volume) if (step, far) == (1, 1) => {
            to[folded..folded + count].copy_from_slice(&from[volume..volume + count]);
        }
        Some(volume) => {
            for turn in 0..count {
                to[folded + turn * step] = from[(volume as i64 + turn as i64 * far) as usize];
            }
        }
        None => (0..count).for_each(|turn| to[folded + turn * step] = T::default()),
    });
}

/// Copies a 2-d tensor's planes to their places in a 3-d one.
fn scatter<T: Typed>(from: &[T], loops: &Loops, to: &mut [T]) {
    loops.visit(|folded, volume, (count, step, far)| {
        let Some(volume) = volume else { return };
        if (step, far) == (1, 1) {
            to[volume..volume + count].copy_from_slice(&from[folded..folded + count]);
        } else {
            for turn in 0..count {
                to[(volume as i64 + turn as i64 * far) as usize] = from[folded + turn * step];
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reference;
    use unhang_conv::reference;

    /// Parts of any size give the same result as the whole, element by element.
    #[test]
    fn parts_of_any_size_make_the_same_result() {
        let geometry = "2x4x5x6x7:6x3x2x3:s2x1x1:p1x1x0:d1x1x1:g2";
        let transposed = "2x4x5x6x7:6x3x2x3:s3x1x1:p1x1x0:d2x1x1:g2:t:o1x0x0";
        for direction in ["forward", "backward-data", "backward-weights"] {
            for (layout, geometry) in [("ncdhw", geometry), ("ndhwc", geometry), ("ncdhw", transposed)] {
                let volume: Volume = format!("{direction}:f64:{layout}:{geometry}").parse().unwrap();
                let [first, second, length] = volume.operand_shapes().map(|shape| shape.iter().product::<usize>());
                let numbers = |count: usize| (0..count).map(|at| ((at * 37) % 23) as f64 - 11.0).collect::<Vec<_>>();
                let (first, second) = (numbers(first), numbers(second));
                let expected = reference::compute_volume(&volume, &first, &second, None);
                let mut counts = Vec::new();
                for limit in [usize::MAX, 2000, 1] {
                    let mut result = vec![f64::NAN; length];
                    let operands = Operands {
                        first: Elements::F64(&first),
                        second: Elements::F64(&second),
                        bias: None,
                        result: ElementsMut::F64(&mut result),
                    };
                    run_within(&Reference, &volume, operands, limit).unwrap();
                    assert_eq!(result, expected, "{volume} in parts of {limit}");
                    counts.push(volume.fold(limit).unwrap().parts.len());
                }
                assert!(counts[0] < counts[1] && counts[1] <= counts[2], "{volume}: {counts:?}");
            }
        }
    }
}

//! Writes the suite's problems as keys, for machines that have a GPU and no Rust: random ones of every data type with
//! the tolerances they are held to, and the layer tables in all directions.
//!
//! `cargo run -p unhang-gpu --example suite_problems -- 500 > problems.txt`

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use unhang_conv::{DataType, Direction, Layout, Problem, Specification};
use unhang_engine::tolerance::Tolerance;
use unhang_suite::{any_problem, layers, more_layers, other_layers};

/// Filters of 3×3 and 5×5 with stride 1, for which chance finds few: Winograd's.
fn square(index: usize) -> Specification {
    let kernel = [3, 3, 5][index % 3];
    Specification {
        batch: 1 + index as i64 % 3,
        in_channels: 16 + index as i64 * 7 % 41,
        out_channels: 16 + index as i64 * 11 % 53,
        in_size: [6 + index as i64 * 5 % 17, 6 + index as i64 * 3 % 19],
        kernel: [kernel, kernel],
        padding: [index as i64 % 3, index as i64 / 2 % 3],
        layout: Layout::ALL[index / 3 % 2],
        direction: Direction::ALL[index / 5 % 3],
        ..Specification::default()
    }
}

/// The square problem with a dilation, or with stride 2 and channels in sixteens.
fn spread_out(index: usize) -> Specification {
    let dense = square(index);
    if index.is_multiple_of(2) {
        let dilation = [1 + index as i64 / 2 % 4, 1 + index as i64 / 3 % 3];
        let reach = [0, 1].map(|axis| dilation[axis] * (dense.kernel[axis] - 1));
        let in_size = [0, 1].map(|axis| dense.in_size[axis].max(reach[axis] + 1));
        return Specification { dilation, in_size, padding: [reach[0] / 2, reach[1].min(1)], ..dense };
    }
    Specification {
        in_channels: 16 * (1 + index as i64 * 7 % 5),
        out_channels: 16 * (1 + index as i64 * 11 % 6),
        kernel: [3, 3],
        stride: [2, 2],
        ..dense
    }
}

/// One channel in a group, mostly of sizes that divide by two or four.
fn depthwise(index: usize) -> Specification {
    let (kernel, channels) = ([3, 3, 5][index % 3], 4 + index as i64 * 4 % 72 + i64::from(index.is_multiple_of(7)));
    Specification {
        batch: 1 + index as i64 % 3,
        in_channels: channels,
        out_channels: channels,
        groups: channels,
        in_size: [5 + index as i64 * 5 % 23, 8 + index as i64 * 2 % 24],
        kernel: [kernel, kernel],
        stride: [1 + index as i64 / 2 % 2; 2],
        padding: [kernel / 2, kernel / 2],
        layout: Layout::ALL[index / 3 % 2],
        direction: Direction::ALL[index / 5 % 3],
        ..Specification::default()
    }
}

fn main() {
    let count: usize = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(100);
    for data_type in DataType::ALL {
        let Tolerance { l2, max } = Tolerance::of(data_type);
        println!("tolerance\t{data_type}\t{l2:e}\t{max:e}");
    }
    for data_type in DataType::ALL {
        // The same problems every time: a failure can be named.
        let seed = [data_type.size() as u8 ^ data_type.name().len() as u8; 32];
        let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        for _ in 0..if data_type == DataType::F32 { count } else { count / 3 } {
            let problem = any_problem(data_type).new_tree(&mut runner).expect("problems are generated").current();
            println!("random\t-\t{problem}");
        }
        for index in 0..count / 10 {
            for specification in [square(index), spread_out(index), depthwise(index)] {
                let problem = Problem::new(Specification { data_type, ..specification }).expect("a valid problem");
                println!("random\t-\t{problem}");
            }
        }
    }
    for (kind, table) in [("layer", layers()), ("more", more_layers()), ("other", other_layers())] {
        for layer in table {
            for direction in Direction::ALL {
                println!("{kind}\t{}\t{}", layer.name, layer.problem.with_direction(direction));
            }
        }
    }
}

//! Writes the suite's problems as keys, for machines that have a GPU and no Rust: random ones of every data type with
//! the tolerances they are held to, and the layer table in all directions.
//!
//! `cargo run -p unhang-gpu --example suite_problems -- 500 > problems.txt`

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use unhang_conv::{DataType, Direction};
use unhang_suite::{Tolerance, any_problem, layers};

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
    }
    for layer in layers() {
        for direction in Direction::ALL {
            println!("layer\t{}\t{}", layer.name, layer.problem.with_direction(direction));
        }
    }
}

//! Compares predictions with what others measured on RDNA1 cards. Each row says how far the model may be off;
//! `--nocapture` prints how far it is. Rows that the model's figures were taken from are marked: they show that the
//! model is consistent, not that it is right.

use unhang_emulator::{Dispatch, Machine, Mode, Object};
use unhang_model::{Bound, Card, Prediction, Sample};

const OBJECT: &[u8] = include_bytes!("fixtures/rows.gfx1010.co");

/// A launch of one of the kernels.
struct Launch {
    kernel: &'static str,
    workgroups: u64,
    threads: u32,
    /// Bytes of the buffers, which come first.
    buffers: Vec<usize>,
    /// The numbers that follow them.
    numbers: Vec<u32>,
}

fn predict(launch: &Launch, card: &Card) -> Prediction {
    let mut machine = Machine::new(Mode::Compute);
    let object: Object = machine.add(OBJECT).unwrap();
    let buffers: Vec<u64> = launch.buffers.iter().map(|&bytes| machine.memory.allocate(bytes)).collect();
    let arguments: Vec<u8> = buffers
        .iter()
        .flat_map(|address| address.to_le_bytes())
        .chain(launch.numbers.iter().flat_map(|number| number.to_le_bytes()))
        .collect();
    let dispatch = Dispatch::new(launch.kernel, [launch.workgroups as u32, 1, 1], [launch.threads, 1, 1], &arguments);
    Sample::take(&mut machine, object, &dispatch).unwrap().predict(card)
}

fn product(rows: u64, columns: u64, size: u64) -> Launch {
    Launch {
        kernel: match (rows, columns) {
            (32, 32) => "product_32x32",
            (64, 32) => "product_64x32",
            _ => "product_64x64",
        },
        workgroups: size / rows * (size / columns),
        threads: (rows * columns / 4) as u32,
        buffers: vec![(size * size * 4) as usize; 3],
        numbers: vec![size as u32; 2],
    }
}

fn held_against(what: &str, predicted: f64, measured: f64, most: f64) {
    let off = predicted / measured;
    println!("{what}: predicted {predicted:.4}, measured {measured:.4}, ratio {off:.2}");
    assert!((1.0 / most..=most).contains(&off), "{what}: predicted {predicted}, measured {measured}");
}

/// RX 5600M at 1500 MHz: the laptop's highest state, which its owner's runs warm up to.
fn laptop() -> Card {
    Card { clock: 1.5e9, ..*Card::named("RX 5600M").unwrap() }
}

#[test]
fn matrix_products_in_small_tiles_take_what_they_took_on_an_rx_5600m() {
    // vkml's docs/M3_ROADMAP.md: gemm_reg, 2 x 2 sums per thread, tiles by rows and columns; milliseconds.
    for (rows, columns, size, measured) in
        [(32, 32, 1024, 0.8975), (32, 32, 2048, 6.7006), (64, 32, 1024, 1.0634), (64, 64, 1024, 1.5236)]
    {
        let found = predict(&product(rows, columns, size), &laptop());
        held_against(&format!("{rows}x{columns}, {size} cubed, ms"), found.seconds * 1e3, measured, 1.25);
    }
}

#[test]
fn what_memory_bounds_takes_what_it_took_on_an_rx_5600m() {
    let multiply = |elements: u64| Launch {
        kernel: "multiply",
        workgroups: elements / 256,
        threads: 256,
        buffers: vec![elements as usize * 4; 3],
        numbers: Vec::new(),
    };
    let relu = |elements: u64| Launch { kernel: "relu", buffers: vec![elements as usize * 4; 2], ..multiply(elements) };
    for (what, launch, measured) in
        [("2^24 products, ms", multiply(1 << 24), 0.83512), ("relu of 2048 x 2048, ms", relu(1 << 22), 0.14436)]
    {
        let found = predict(&launch, &laptop());
        assert_eq!(found.bound, Bound::Memory);
        held_against(what, found.seconds * 1e3, measured, 1.2);
    }
}

#[test]
fn register_tiles_are_predicted_no_slower_than_they_were_on_a_bc_250() {
    let card = Card::named("BC-250").unwrap();
    // OPENCL-PERF.md of pytorch-dlprim-gfx1013: R x R sums from LDS; TFLOP/s. We do not know how its loop is written,
    // and it ran in waves of 64. Ours is the best that such a tile could reach, and says nothing about the model beyond
    // that.
    for (kernel, r, measured) in
        [("register_tile_5", 5, 3.9), ("register_tile_7", 7, 4.6), ("register_tile_10", 10, 5.6)]
    {
        let rounds = 16;
        let launch =
            Launch { kernel, workgroups: 4000, threads: 256, buffers: vec![4000 * 256 * 4], numbers: vec![rounds] };
        let found = predict(&launch, card);
        let operations = 4000.0 * 256.0 * f64::from(rounds) * 16.0 * f64::from(r * r) * 2.0;
        let predicted = operations / found.seconds / 1e12;
        println!("{r}x{r} sums a thread, TFLOP/s: predicted {predicted:.2}, measured {measured}");
        assert!((measured..10.24).contains(&predicted), "{found:?}");
    }
}

#[test]
fn plain_arithmetic_is_bound_by_the_vector_units_and_lds_by_its_path() {
    let card = Card::named("BC-250").unwrap();
    let launch = |kernel, rounds| Launch {
        kernel,
        workgroups: 4000,
        threads: 256,
        buffers: vec![4000 * 256 * 16],
        numbers: if kernel == "local_quads" { vec![rounds] } else { vec![0x3f80_0000, rounds] },
    };
    // The same document: mad 8.45 and pk_fma_f16 18.7 TFLOP/s, 83 and 91 % of the peak.
    for (kernel, measured) in [("chains", 8.45), ("packed_chains", 18.7)] {
        let found = predict(&launch(kernel, 64), card);
        assert_eq!(found.bound, Bound::Vector, "{found:?}");
        held_against(kernel, found.operations / found.seconds / 1e12, measured, 1.25);
    }
    // 4.90 TB/s. The model's figure for LDS was taken from this row.
    let found = predict(&launch("local_quads", 64), card);
    assert_eq!(found.bound, Bound::Local, "{found:?}");
    held_against("local_quads, TB/s", 4000.0 * 256.0 * 64.0 * 8.0 * 16.0 / found.seconds / 1e12, 4.90, 1.15);
}

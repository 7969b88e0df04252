//! What an observer sees of a kernel, and workgroups that run alone.

mod common;

use std::sync::{Arc, Mutex};

use common::{Arguments, numbers};
use unhang_emulator::{Dispatch, Follow, Machine, Mode, Moment, Observer, Space, Touched};
use unhang_isa::Chip;

const NATIVE: &[u8] = include_bytes!("fixtures/kernels.gfx1010.co");

/// Keeps what waves do to memory, and ends each after this many instructions.
#[derive(Default)]
struct Watch {
    touched: Mutex<Vec<([u32; 3], Touched)>>,
    seen: Mutex<u64>,
    limit: Option<u64>,
}

impl Observer for Watch {
    fn before(&self, moment: &Moment<'_>) -> Follow {
        *self.seen.lock().unwrap() += 1;
        if self.limit.is_some_and(|limit| *self.seen.lock().unwrap() > limit) {
            return Follow::EndWave;
        }
        if let Some(touched) = moment.touched() {
            self.touched.lock().unwrap().push((moment.workgroup(), touched));
        }
        Follow::On
    }
}

/// `axpy` of 512 elements in two workgroups. Returns the machine and the address of y.
fn axpy(only: Option<Vec<u64>>, watch: Option<Arc<Watch>>) -> (Machine, u64, u64) {
    let mut machine = Machine::load(NATIVE, Mode::Hazards(Chip::Gfx1010)).unwrap();
    let (x, y) = (numbers(512, 1), vec![7.0; 512]);
    let (at_x, at_y) = (machine.memory.allocate_floats(&x), machine.memory.allocate_floats(&y));
    machine.only = only;
    if let Some(watch) = watch {
        machine.observer = Some(watch);
    }
    let arguments = Arguments::default().pointer(at_x).pointer(at_y).float(1.5).int(512);
    let dispatch = Dispatch::new("axpy", [2, 1, 1], [256, 1, 1], &arguments.0);
    machine.run(&dispatch).unwrap();
    (machine, at_x, at_y)
}

#[test]
fn a_workgroup_that_is_named_runs_alone() {
    for watch in [None, Some(Arc::new(Watch::default()))] {
        let (machine, _, at_y) = axpy(Some(vec![1]), watch);
        let result = machine.memory.read_floats(at_y, 512).unwrap();
        assert!(result[..256].iter().all(|&value| value == 7.0), "the first workgroup wrote nothing");
        assert!(result[256..].iter().all(|&value| value != 7.0), "the second one all of its part");
    }
    let (machine, _, at_y) = axpy(Some(vec![0, 1, 2, 9]), None);
    let result = machine.memory.read_floats(at_y, 512).unwrap();
    assert!(result.iter().all(|&value| value != 7.0), "numbers past the grid are left out");
}

#[test]
fn an_observer_sees_what_each_lane_is_about_to_touch() {
    let watch = Arc::new(Watch::default());
    let (_, at_x, at_y) = axpy(None, Some(watch.clone()));
    let touched = watch.touched.lock().unwrap();
    let of = |space: Space, writes: bool| touched.iter().filter(move |it| it.1.space == space && it.1.writes == writes);
    // Eight waves of 32 lanes in each of two workgroups: two loads and a store.
    assert_eq!((of(Space::Global, false).count(), of(Space::Global, true).count()), (32, 16));
    assert!(of(Space::Scalar, false).count() > 0, "arguments are read by scalar loads");
    let mut stored: Vec<u64> = of(Space::Global, true).flat_map(|(_, touched)| touched.addresses.clone()).collect();
    stored.sort_unstable();
    assert_eq!(stored, (0..512).map(|element| at_y + element * 4).collect::<Vec<u64>>());
    let loaded = of(Space::Global, false).flat_map(|(_, touched)| &touched.addresses);
    assert_eq!(loaded.filter(|&&address| (at_x..at_x + 2048).contains(&address)).count(), 512);
    assert!(touched.iter().all(|(group, it)| it.space == Space::Scalar || (it.bytes == 4 && group[0] < 2)));
}

#[test]
fn a_wave_that_an_observer_ends_does_not_hold_up_the_others() {
    let watch = Arc::new(Watch { limit: Some(3), ..Watch::default() });
    let (machine, _, at_y) = axpy(None, Some(watch.clone()));
    assert_eq!(*watch.seen.lock().unwrap(), 3 + 16, "three instructions, and one more look at each wave");
    assert!(machine.memory.read_floats(at_y, 512).unwrap().iter().all(|&value| value == 7.0));
}

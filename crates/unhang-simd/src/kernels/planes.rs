//! The kernel of weight gradients with pixels in vectors on both sides.

use super::PlaneProducts;
use crate::vector::Vector;

/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe.
#[inline(always)]
pub(super) unsafe fn products<V: Vector, const FILTERS: usize, const PLACES: usize>(products: &PlaneProducts) {
    // SAFETY: the function's own conditions.
    unsafe {
        let places: [usize; PLACES] = std::array::from_fn(|place| *products.places.add(place));
        let mut sums = [[V::zero(); PLACES]; FILTERS];
        let (whole, rest) = (products.count / V::LANES * V::LANES, products.count % V::LANES);
        // Whole vectors first and what is left of rows then: with both in one loop the sums do not stay in registers.
        for image in 0..products.images {
            for row in 0..products.rows {
                let x = products.x.add(image * products.x_steps[0] + row * products.x_steps[1]);
                let dy = products.dy.add(image * products.dy_steps[0] + row * products.dy_steps[1]);
                for at in (0..whole).step_by(V::LANES) {
                    let gradients = std::array::from_fn(|filter| V::load(dy.add(filter * products.filter_step + at)));
                    add(&mut sums, gradients, |place| V::load(x.add(places[place] + at)));
                }
            }
        }
        if rest > 0 {
            for image in 0..products.images {
                for row in 0..products.rows {
                    let x = products.x.add(image * products.x_steps[0] + row * products.x_steps[1] + whole);
                    let dy = products.dy.add(image * products.dy_steps[0] + row * products.dy_steps[1] + whole);
                    let gradient = |filter: usize| V::load_part(dy.add(filter * products.filter_step), rest);
                    add(&mut sums, std::array::from_fn(gradient), |place| V::load_part(x.add(places[place]), rest));
                }
            }
        }
        // By way of memory: the totals of all sums at once do not leave the registers to them.
        let mut lanes = [[[0.0f32; 16]; PLACES]; FILTERS];
        for (lanes, sum) in lanes.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
            sum.store(lanes.as_mut_ptr());
        }
        for (filter, of_filter) in std::hint::black_box(&lanes).iter().enumerate() {
            for (place, lanes) in of_filter.iter().enumerate() {
                let to = products.sums.add(filter * products.sums_step + place);
                let total = V::load(lanes.as_ptr()).total();
                *to = if products.begins { total } else { *to + total };
            }
        }
    }
}

/// Adds the products of a vector for each filter and one for each place.
///
/// # Safety
/// Inlined where the features of `V` are on.
#[inline(always)]
unsafe fn add<V: Vector, const FILTERS: usize, const PLACES: usize>(
    sums: &mut [[V; PLACES]; FILTERS],
    gradients: [V; FILTERS],
    number_at: impl Fn(usize) -> V,
) {
    for place in 0..PLACES {
        let number = number_at(place);
        for (of_filter, gradient) in sums.iter_mut().zip(gradients) {
            // SAFETY: the function's own condition.
            of_filter[place] = unsafe { number.multiply_add(gradient, of_filter[place]) };
        }
    }
}

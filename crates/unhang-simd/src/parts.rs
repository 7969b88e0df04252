//! Lengths in parts.

/// Cuts `length` into the fewest parts of at most `most`, as even as can be: start and length of each.
pub fn even_parts(length: usize, most: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let parts = length.div_ceil(most.max(1)).max(1);
    (0..parts).map(move |part| {
        let start = part * length / parts;
        (start, (part + 1) * length / parts - start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_complete() {
        assert_eq!(even_parts(80, 14).map(|(_, length)| length).collect::<Vec<_>>(), [13, 13, 14, 13, 13, 14]);
        assert_eq!(even_parts(5, 9).collect::<Vec<_>>(), [(0, 5)]);
    }
}

//! What hung earlier in a run, as `unhang run` tells the processes that it starts again.

use unhang_conv::Problem;
use unhang_engine::EngineName;

/// Reads the value of `UNHANG_QUARANTINE`: pairs such as `aten@forward:f32:…`, separated by spaces. What cannot be read is
/// left out.
pub fn quarantined(text: &str) -> Vec<(EngineName, Problem)> {
    let pair = |entry: &str| {
        let (engine, key) = entry.split_once('@')?;
        Some((engine.parse().ok()?, key.parse().ok()?))
    };
    text.split_whitespace().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_and_nonsense_is_left_out() {
        let key = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";
        let found = quarantined(&format!("miopen@{key} nonsense aten@x jit@{key}"));
        let engines: Vec<EngineName> = found.iter().map(|it| it.0).collect();
        assert_eq!(engines, [EngineName::Miopen, EngineName::Jit]);
        assert!(found.iter().all(|(_, problem)| problem.to_string() == key));
        assert!(quarantined("").is_empty());
    }
}

//! Shapes, types and layouts as people write them: as in keys, or as torch prints them.

use anyhow::bail;
use unhang_conv::{DataType, Layout};

/// The numbers of a shape: `1x16x64x64`, `1,16,64,64`, `(1, 16, 64, 64)` or `torch.Size([1, 16, 64, 64])`.
pub(super) fn numbers(text: &str) -> Option<Vec<i64>> {
    let bare = text.trim().trim_start_matches("torch.Size").trim_matches(['(', ')', '[', ']', ' ', ',']);
    bare.split(['x', '×', ',']).map(|number| number.trim().parse().ok()).collect()
}

/// That many numbers of a shape, or an error that says what was expected.
pub(super) fn exactly<const N: usize>(what: &str, text: &str, example: &str) -> anyhow::Result<[i64; N]> {
    match numbers(text).map(<[i64; N]>::try_from) {
        Some(Ok(numbers)) => Ok(numbers),
        _ => bail!("{what} is {text:?}: expected {N} numbers such as {example}"),
    }
}

/// Height and width: one number for both, or two.
pub(super) fn pair(what: &str, text: &str) -> anyhow::Result<[i64; 2]> {
    match numbers(text).as_deref() {
        Some(&[both]) => Ok([both; 2]),
        Some(&[height, width]) => Ok([height, width]),
        _ => bail!("{what} is {text:?}: expected a number such as 2, or height and width such as 2x1"),
    }
}

/// A whole shape, written as in keys. For arguments that are passed on.
pub(super) fn shape(text: &str) -> Result<String, String> {
    match numbers(text) {
        Some(numbers) if numbers.iter().all(|number| *number > 0) => {
            Ok(numbers.iter().map(i64::to_string).collect::<Vec<_>>().join("x"))
        }
        _ => Err("expected a shape such as 1x3x224x224 or (1, 3, 224, 224)".to_owned()),
    }
}

/// A type as in keys (f16) or as torch names it (torch.float16, half).
pub(super) fn data_type(text: &str) -> Result<DataType, String> {
    let name = match text.strip_prefix("torch.").unwrap_or(text) {
        "float32" | "float" | "fp32" => "f32",
        "float16" | "half" | "fp16" => "f16",
        "bfloat16" => "bf16",
        "float64" | "double" | "fp64" => "f64",
        other => other,
    };
    name.parse().map_err(|error: unhang_conv::UnknownName| error.to_string())
}

/// A layout as in keys (nhwc) or as torch names it (channels_last).
pub(super) fn layout(text: &str) -> Result<Layout, String> {
    let name = match text.strip_prefix("torch.").unwrap_or(text) {
        "channels_last" => "nhwc",
        "contiguous_format" | "contiguous" => "nchw",
        other => other,
    };
    name.parse().map_err(|error: unhang_conv::UnknownName| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_keys_have_them_and_as_torch_prints_them() {
        for text in ["1x16x64x64", "1,16,64,64", "(1, 16, 64, 64)", "[1, 16, 64, 64]", "torch.Size([1, 16, 64, 64])"] {
            assert_eq!(exactly("the input", text, "").unwrap(), [1, 16, 64, 64], "{text}");
            assert_eq!(shape(text).as_deref(), Ok("1x16x64x64"), "{text}");
        }
        for (text, both) in [("2", [2, 2]), ("2x1", [2, 1]), ("2,1", [2, 1]), ("(2, 1)", [2, 1]), ("(2,)", [2, 2])] {
            assert_eq!(pair("--stride", text).unwrap(), both, "{text}");
        }
        for nonsense in ["", "x", "1x", "one", "1.5", "1x0"] {
            assert!(shape(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn types_and_layouts_have_torchs_names_too() {
        for (text, expected) in [("f16", "f16"), ("torch.float16", "f16"), ("half", "f16"), ("bfloat16", "bf16")] {
            assert_eq!(data_type(text).map(|it| it.to_string()).as_deref(), Ok(expected));
        }
        assert_eq!(layout("channels_last").map(|it| it.to_string()).as_deref(), Ok("nhwc"));
        assert!(data_type("int8").unwrap_err().contains("f32, f16"));
    }
}

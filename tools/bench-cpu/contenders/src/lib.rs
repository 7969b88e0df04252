//! Other engines for `ctypes`: each is given a convolution once and computes it as often as asked, forward, NCHW, f32.

use std::ffi::{CStr, c_char};

use candle_core::{Device, Tensor as CandleTensor};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, Tensor as RtenTensor};
use tract_onnx::prelude::*;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Computes, and copies the result out if requested.
type Contender = Box<dyn Fn(Option<&mut [f32]>) -> Outcome<()>>;

/// A convolution: image, filter, and the same model as an ONNX file for engines that read nothing else.
struct Convolution<'a> {
    input: [usize; 4],
    weight: [usize; 4],
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
    x: &'a [f32],
    w: &'a [f32],
    onnx: &'a [u8],
}

fn tract(convolution: &Convolution<'_>) -> Outcome<Contender> {
    let model = tract_onnx::onnx().model_for_read(&mut &*convolution.onnx)?.into_optimized()?.into_runnable()?;
    let input: TValue = Tensor::from_shape(&convolution.input, convolution.x)?.into();
    Ok(Box::new(move |out| {
        let result = model.run(tvec!(input.clone()))?;
        if let Some(out) = out {
            out.copy_from_slice(result[0].try_as_plain_ram()?.as_slice::<f32>()?);
        }
        Ok(())
    }))
}

fn rten(convolution: &Convolution<'_>) -> Outcome<Contender> {
    let model = rten::Model::load(convolution.onnx.to_vec())?;
    let input = NdTensor::from_data(convolution.input, convolution.x.to_vec());
    Ok(Box::new(move |out| {
        let result: RtenTensor<f32> = model.run_one(input.view().into(), None)?.try_into()?;
        if let Some(out) = out {
            out.copy_from_slice(&result.to_vec());
        }
        Ok(())
    }))
}

fn candle(convolution: &Convolution<'_>) -> Outcome<Contender> {
    let input = CandleTensor::from_slice(convolution.x, &convolution.input[..], &Device::Cpu)?;
    let weight = CandleTensor::from_slice(convolution.w, &convolution.weight[..], &Device::Cpu)?;
    let &Convolution { padding, stride, dilation, groups, .. } = convolution;
    Ok(Box::new(move |out| {
        let result = input.conv2d(&weight, padding, stride, dilation, groups)?;
        if let Some(out) = out {
            out.copy_from_slice(&result.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(())
    }))
}

/// Creates a contender; null, with a message on standard error, if that fails. It is never freed.
///
/// # Safety
/// `name` is a C string, and `onnx` has `length` bytes. `sizes` are n, c, h, w, k, c of a group, r, s, padding, stride,
/// dilation, groups. `x` and `w` are dense tensors of those sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn contender_new(
    name: *const c_char,
    sizes: *const usize,
    x: *const f32,
    w: *const f32,
    onnx: *const u8,
    length: usize,
) -> *const Contender {
    // SAFETY: the caller guarantees these conditions.
    let (name, convolution) = unsafe {
        let sizes = std::slice::from_raw_parts(sizes, 12);
        let input = [sizes[0], sizes[1], sizes[2], sizes[3]];
        let weight = [sizes[4], sizes[5], sizes[6], sizes[7]];
        let convolution = Convolution {
            input,
            weight,
            padding: sizes[8],
            stride: sizes[9],
            dilation: sizes[10],
            groups: sizes[11],
            x: std::slice::from_raw_parts(x, input.iter().product()),
            w: std::slice::from_raw_parts(w, weight.iter().product()),
            onnx: std::slice::from_raw_parts(onnx, length),
        };
        (CStr::from_ptr(name).to_string_lossy().into_owned(), convolution)
    };
    let made = match name.as_str() {
        "tract" => tract(&convolution),
        "rten" => rten(&convolution),
        "candle" => candle(&convolution),
        _ => Err(format!("no contender is called {name}").into()),
    };
    match made {
        Ok(contender) => Box::leak(Box::new(contender)),
        Err(error) => {
            eprintln!("{name}: {error}");
            std::ptr::null()
        }
    }
}

/// Computes once; zero on success.
///
/// # Safety
/// The contender is from [`contender_new`]; `out` is null or has room for `length` numbers, as many as the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn contender_run(contender: *const Contender, out: *mut f32, length: usize) -> i32 {
    // SAFETY: the caller guarantees these conditions.
    let (contender, out) = unsafe {
        (&*contender, (!out.is_null()).then(|| std::slice::from_raw_parts_mut(out, length)))
    };
    match contender(out) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

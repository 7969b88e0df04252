//! Which switch keeps a program away from unsafe kernels, found by their names.

/// What to do about a kernel of this name. MIOpen, rocBLAS and ggml put the source of a kernel into its name; for
/// others no switch is known. The advice follows from the variables' documented meaning; none was tried on a card.
pub(crate) fn what_avoids(function: &str) -> &'static str {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| function.starts_with(prefix));
    if starts(&["Cijk_"]) {
        return "it is rocBLAS's: MIOPEN_DEBUG_CONV_GEMM=0 keeps MIOpen's convolutions from it, and for other matrix products single \
                precision or the CPU does";
    }
    if starts(&["miopenSp3Asm", "sp3AsmConv", "miopenGcnAsmWinograd"]) || function.contains("inograd") {
        return "MIOPEN_DEBUG_CONV_WINOGRAD=0 avoids it";
    }
    if starts(&["gridwise_convolution", "igemm_", "static_kernel_"]) || function.contains("implicit_gemm") {
        return "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM=0 avoids it";
    }
    if starts(&["MIOpenConv", "MIOpenCDFG", "miopenGcnAsmConv", "gcnAsmConv", "naive_conv_", "conv1x1"]) {
        return "MIOPEN_DEBUG_CONV_DIRECT=0 avoids it";
    }
    if starts(&["MIOpenBatchNorm", "miopenBatchNorm"]) {
        return "torch.backends.cudnn.enabled = False avoids it, as unhang.enable() does for batch norms";
    }
    if function.contains("flash_attn") {
        return "it is ggml's: without flash attention (llama.cpp's -fa off) it is not launched";
    }
    if function.contains("mul_mat_q") || function.contains("mul_mat_vec_q") {
        return "it is ggml's for quantised weights: a model in f16 does without it";
    }
    "no switch is known that avoids it"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_has_its_switch() {
        for (function, expected) in [
            ("Cijk_Ailk_Bljk_BBS_BH_MT32x32x16_SE_1LDSB0", "MIOPEN_DEBUG_CONV_GEMM=0"),
            ("miopenSp3AsmConv_v30_2_6_gfx10_fp32_f2x3_stride1", "MIOPEN_DEBUG_CONV_WINOGRAD=0"),
            ("gridwise_convolution_implicit_gemm_v4r4_nchw_kcyx_nkhw", "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM=0"),
            ("MIOpenConvUni", "MIOPEN_DEBUG_CONV_DIRECT=0"),
            ("naive_conv_ab_nonpacked_fwd_nchw_float_double_float", "MIOPEN_DEBUG_CONV_DIRECT=0"),
            ("MIOpenBatchNormFwdTrainSpatial", "cudnn.enabled"),
            ("_ZL15flash_attn_tileILi64ELi64ELi8EEvPKc", "-fa off"),
            ("_ZL9mul_mat_qIL9ggml_type41ELi64ELb0EEvPKc", "a model in f16"),
            ("_ZN2at6native6vectorE", "no switch is known"),
        ] {
            assert!(what_avoids(function).contains(expected), "{function}");
        }
    }
}

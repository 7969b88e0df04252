//! The audit of a whole code object: every function, on all cores.

use rayon::prelude::*;
use unhang_isa::audit::{Context, Finding, Hazards, audit, audit_across_calls};
use unhang_isa::elf::{CodeObject, ElfError, Function, Mode};
use unhang_isa::{Chip, Program};

/// The findings in one code object.
#[derive(Clone, Debug)]
pub struct ObjectSurvey {
    /// The chip for which it was compiled; `None` outside the gfx10 family, where nothing is audited.
    pub target: Option<Chip>,
    /// Its functions in the order of their addresses.
    pub functions: Vec<FunctionSurvey>,
    /// Bytes of machine code.
    pub code_bytes: u64,
}

/// The findings in one function.
#[derive(Clone, Debug)]
pub struct FunctionSurvey {
    /// Its name.
    pub name: String,
    /// Whether it is a kernel, as opposed to a function that kernels call.
    pub is_kernel: bool,
    /// The number of findings.
    pub hazards: Hazards,
    /// How many more there are if its callers, or functions that it calls, leave something pending.
    pub across_calls: u64,
    /// The findings, if requested.
    pub findings: Vec<Finding>,
    /// Why it could not be decoded, if so.
    pub error: Option<String>,
}

/// The options of a survey.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The chip on which the code would run.
    pub chip: Chip,
    /// Whether to keep each finding, not only their number.
    pub keep_findings: bool,
}

/// Audits every function of a code object.
pub fn survey(bytes: &[u8], options: Options) -> Result<ObjectSurvey, ElfError> {
    let object = CodeObject::parse(bytes)?;
    let Some(target) = object.chip() else {
        return Ok(ObjectSurvey { target: None, functions: Vec::new(), code_bytes: 0 });
    };
    let functions: Vec<FunctionSurvey> = object
        .functions
        .par_iter()
        .map(|function| survey_function(function, target, object.mode_of(function), options))
        .collect();
    let code_bytes = object.functions.iter().map(|function| function.code.len() as u64).sum();
    Ok(ObjectSurvey { target: Some(target), functions, code_bytes })
}

fn survey_function(function: &Function<'_>, target: Chip, mode: Mode, options: Options) -> FunctionSurvey {
    let mut survey = FunctionSurvey {
        name: function.name.to_owned(),
        is_kernel: function.descriptor.is_some(),
        hazards: Hazards::default(),
        across_calls: 0,
        findings: Vec::new(),
        error: None,
    };
    match Program::decode(function.code, target, mode.wave64) {
        Ok(program) => {
            let context = Context { workgroup_processor_mode: mode.workgroup_processor };
            let findings = audit(&program, options.chip, context);
            survey.hazards = Hazards::count(&findings);
            survey.across_calls = audit_across_calls(&program, options.chip, context, !survey.is_kernel).len() as u64;
            if options.keep_findings {
                survey.findings = findings;
            }
        }
        Err(error) => survey.error = Some(error.to_string()),
    }
    survey
}

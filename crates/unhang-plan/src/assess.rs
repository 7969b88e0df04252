//! Judges each engine for one convolution, before any strategy.

use unhang_conv::Problem;
use unhang_engine::EngineName;
use unhang_evidence::{Evidence, Finding, rules};

use crate::plan::Reference;
use crate::situation::{Availability, Situation};

/// How far an engine can be trusted with a convolution.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Worth {
    /// It cannot or must not be used, and why.
    Out(String),
    /// It worked here; how long it took, if measured.
    Proven(Option<f64>),
    /// There is no evidence against it.
    Open,
    /// Somebody claims that it does not work; who.
    Suspect(String),
    /// Nobody has seen it work on this affected card; why not.
    Unproven(String),
}

/// An engine, the judgement and its evidence.
#[derive(Debug, Clone)]
pub(crate) struct Assessment {
    pub(crate) engine: EngineName,
    pub(crate) worth: Worth,
    pub(crate) references: Vec<Reference>,
}

/// Judges one engine.
pub(crate) fn assess(problem: &Problem, engine: EngineName, situation: &Situation, evidence: &Evidence) -> Assessment {
    let variant = if engine == EngineName::Miopen { situation.miopen_variant.as_str() } else { "" };
    let finding = evidence.about(problem, engine, variant);
    let mut references: Vec<Reference> = finding.iter().map(Reference::to_finding).collect();
    let mut suspicions = Vec::new();
    // Claims are about affected cards. Elsewhere unhang leaves torch alone, and a stranger's file must not change
    // that.
    if situation.is_endangered() {
        let claim = finding.as_ref().filter(|it| !it.is_proof() && !it.is_refutation());
        suspicions.extend(claim.map(Finding::to_string));
        for rule in rules::suspicions(problem, engine) {
            suspicions.push(format!("rule {}", rule.name));
            references.push(Reference::to_rule(rule));
        }
    }
    let worth = match situation.availability(engine) {
        Availability::Absent(reason) => Worth::Out(format!("{engine} is not available ({reason})")),
        availability => {
            let no_solver = situation.no_solver_left(problem).filter(|_| engine == EngineName::Miopen);
            match (no_solver, &finding, availability) {
                (Some(reason), _, _) => Worth::Out(format!("miopen has no solver ({reason})")),
                (_, Some(it), _) if it.is_refutation() => Worth::Out(format!("known here: {it}")),
                (_, Some(it), _) if it.is_proof() => Worth::Proven(it.seconds),
                (_, _, Availability::Unproven(reason)) => Worth::Unproven(reason.clone()),
                _ if suspicions.is_empty() => Worth::Open,
                _ => Worth::Suspect(suspicions.join("; ")),
            }
        }
    };
    Assessment { engine, worth, references }
}

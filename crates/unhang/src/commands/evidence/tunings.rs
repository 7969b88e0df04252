//! `unhang evidence tunings`: which of our GPU kernels were measured as the fastest.

use serde_json::{Value, json};
use unhang_evidence::{RecordSource, Store, Tuning, time};
use unhang_gpu::tuning::kernels;

use super::super::text::{counted, entry, print_safe_json, print_text, wrapped};

/// Whether it is about this version's kernels. The compiler and the device do not matter here; the engine checks these
/// too.
fn is_current(tuning: &Tuning) -> bool {
    tuning.tuned.kernels == kernels()
}

/// A tuning for other programs.
pub(crate) fn to_json(tuning: &Tuning) -> Value {
    let tuned = &tuning.tuned;
    json!({
        "problem": tuned.problem.to_string(),
        "device": tuned.device,
        "kernels": tuned.kernels,
        "current": is_current(tuning),
        "compiler": tuned.compiler,
        "driver": tuned.driver,
        "choice": tuned.choice,
        "seconds": tuned.seconds,
        "spread": tuned.spread,
        "model_choice": tuned.model_choice,
        "model_seconds": tuned.model_seconds,
        "share": tuned.share(),
        "candidates": tuned.candidates,
        "detail": tuned.detail,
        "source": tuning.source.name(),
        "unix_seconds": tuning.unix_seconds,
    })
}

/// One tuning on one line, for a plan.
pub(crate) fn in_words(tuning: &Tuning) -> String {
    let tuned = &tuning.tuned;
    let gain = if tuned.choice == tuned.model_choice {
        "the model's own choice".to_owned()
    } else {
        format!("the model's {} took {}", tuned.model_choice, time::duration(tuned.model_seconds))
    };
    let stale = if is_current(tuning) { "" } else { "; out of date: for another version's kernels, not used" };
    format!(
        "{} took {} on {}, the fastest of {} ({gain}; {}, {}{stale})",
        tuned.choice,
        time::duration(tuned.seconds),
        tuned.device,
        tuned.candidates,
        tuning.source,
        time::date(tuning.unix_seconds),
    )
}

/// What counts for the model of convolutions: real cards, these kernels, and no choice that is used only on request.
fn shares(tunings: &[Tuning]) -> Vec<(&Tuning, f64)> {
    let counts = |it: &&Tuning| {
        is_current(it)
            && it.tuned.problem.convolution().is_some()
            && it.source != RecordSource::Rehearsal
            && !it.tuned.choice.starts_with("half:")
            && it.tuned.share() > 0.0
    };
    tunings.iter().filter(counts).map(|it| (it, it.tuned.share())).collect()
}

/// The geometric mean of the model's share of the fastest ones' speed, and the worst; `None` if nothing counts.
fn mean_and_worst(tunings: &[Tuning]) -> Option<(f64, f64, &Tuning)> {
    let shares = shares(tunings);
    let (worst, least) = *shares.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let mean = (shares.iter().map(|(_, share)| share.ln()).sum::<f64>() / shares.len() as f64).exp();
    Some((mean, least, worst))
}

/// A few lines for a larger list; empty if nothing was measured.
pub(crate) fn summary(tunings: &[Tuning]) -> String {
    if tunings.is_empty() {
        return String::new();
    }
    let stale = tunings.iter().filter(|it| !is_current(it)).count();
    let rehearsed = tunings.iter().filter(|it| it.source == RecordSource::Rehearsal).count();
    let convolutions = tunings.iter().filter(|it| it.tuned.problem.convolution().is_some()).count();
    let mut text = counted(convolutions, "convolution");
    if convolutions < tunings.len() {
        text += &format!(" and {}", counted(tunings.len() - convolutions, "other operation"));
    }
    text += " whose fastest kernels were measured";
    if stale > 0 {
        text += &format!(", {stale} of them out of date (for another version's kernels: not used)");
    }
    if rehearsed > 0 {
        text += &format!(", {rehearsed} of them on an emulated card (not a card's times)");
    }
    if let Some((mean, least, worst)) = mean_and_worst(tunings) {
        text += &format!(
            ". The model's own choices run at {mean:.3} of the fastest ones' speed (geometric mean; worst {least:.3}, {})",
            worst.tuned.problem
        );
    }
    format!("\n{}\n", wrapped(&text, 0, 0))
}

/// Prints all of them.
pub(crate) fn print(store: &Store, as_json: bool) -> anyhow::Result<()> {
    let tunings = store.tunings();
    if as_json {
        let found = mean_and_worst(&tunings);
        return print_safe_json(&json!({
            "tunings": tunings.iter().map(to_json).collect::<Vec<_>>(),
            "geometric_mean": found.map(|it| it.0),
            "worst": found.map(|it| json!({ "share": it.1, "problem": it.2.tuned.problem.to_string() })),
        }));
    }
    if tunings.is_empty() {
        let nothing =
            "nothing was tuned yet; `unhang bench --tune` and `unhang.enable(tune=True)` measure kernels on the GPU";
        return print_text(&format!("{}\n", wrapped(nothing, 0, 0)));
    }
    let mut out = String::new();
    for tuning in &tunings {
        let tuned = &tuning.tuned;
        let spread = format!("spread {:.0} %, the model's share {:.2}", tuned.spread * 100.0, tuned.share());
        out += &entry(&tuned.problem.to_string(), &[&in_words(tuning), &spread], &tuned.detail);
    }
    print_text(&format!("{out}{}", summary(&tunings)))
}

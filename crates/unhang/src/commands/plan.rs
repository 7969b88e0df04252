//! `unhang plan`: which engine would compute a convolution, and why.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};
use unhang_conv::{DataType, Direction, Layout, Problem, Specification, Volume};
use unhang_engine::EngineName;
use unhang_evidence::{Realm, RecordSource, Tuning};
use unhang_plan::{Plan, Settings, Strategy, plan};

use super::evidence::tunings;
use super::knowledge::{KeptElsewhere, Knowledge, KnowledgeArguments, ON_EMULATED_CARD, open_existing_store};
use super::shapes;
use super::text::{print_safe_json, print_text, wrapped};
use crate::output::{Colour, Style, printable};

/// Say which engine would run a convolution here, and why. Runs nothing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang plan 1x16x64x64 32x3x3 --padding 1
  unhang plan 'torch.Size([1, 16, 64, 64])' '(32, 16, 3, 3)' --dtype float16
  unhang plan 4x64x56x56 64x3x3 --padding same --direction backward-weights
  unhang plan forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1 --json
  unhang plan 1x3x224x224 64x7x7 --stride 2 --padding 3 --strategy selective
  unhang plan forward:f32:ncdhw:1x16x8x64x64:32x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1

Exit codes:
  0  a plan was made
  2  wrong usage")]
pub(crate) struct PlanCommand {
    /// A convolution's key, 2-d or 3-d; or the input as BATCHxCHANNELSxHEIGHTxWIDTH and then the filter as
    /// CHANNELSxHEIGHTxWIDTH. Torch's shapes work too, also a weight's.
    #[arg(required = true, num_args = 1..=2, value_name = "KEY | INPUT FILTER")]
    convolution: Vec<String>,
    /// Stride, as N or HxW [default: 1].
    #[arg(long, value_name = "N")]
    stride: Option<String>,
    /// Zeros on each side, as N or HxW, or torch's same and valid [default: 0].
    #[arg(long, value_name = "N")]
    padding: Option<String>,
    /// Dilation, as N or HxW [default: 1].
    #[arg(long, value_name = "N")]
    dilation: Option<String>,
    /// Groups of channels [default: 1].
    #[arg(long, value_name = "N")]
    groups: Option<i64>,
    /// f32, f16, bf16 or f64, or torch's names for them [default: f32].
    #[arg(long, visible_alias = "data-type", value_name = "TYPE", value_parser = shapes::data_type)]
    dtype: Option<DataType>,
    /// nchw or nhwc (channels_last) [default: nchw].
    #[arg(long, value_name = "LAYOUT", value_parser = shapes::layout)]
    layout: Option<Layout>,
    /// forward, backward-data or backward-weights [default: forward].
    #[arg(long, value_name = "DIRECTION")]
    direction: Option<Direction>,
    /// A transposed convolution.
    #[arg(long)]
    transposed: bool,
    /// Rows and columns added at the end of a transposed convolution's output [default: 0].
    #[arg(long, value_name = "N", requires = "transposed")]
    output_padding: Option<String>,
    /// auto, implicit_gemm, cpu_fallback, selective, aten, jit or tiled.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    strategy: Strategy,
    /// For selective: the larger side up to which MIOpen is used.
    #[arg(long, value_name = "N", default_value_t = 42)]
    size_threshold: usize,
    /// Never move a convolution from the GPU to the CPU.
    #[arg(long)]
    no_cpu_fallback: bool,
    /// For tiled: the larger side of what one tile reads.
    #[arg(long, value_name = "N", default_value_t = 32)]
    tile_limit: usize,
    /// For tiled: the engine inside the tiles.
    #[arg(long, value_name = "ENGINE")]
    tile_engine: Option<EngineName>,
    /// Where the tensors live: `gpu`, or `cpu` for the host's memory [default: gpu if there is one].
    #[arg(long, value_name = "DEVICE", value_parser = ["gpu", "cpu"])]
    device: Option<String>,
    /// Plan from what rehearsals found instead of what was seen.
    #[arg(long = "rehearsed")]
    rehearsal: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    knowledge: KnowledgeArguments,
}

/// A 3-d convolution, the first of the 2-d ones that it is folded into, and their number. Their plans differ only in
/// sizes.
struct Folded {
    volume: Volume,
    first: Problem,
    parts: usize,
}

impl PlanCommand {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let folded = self.folded()?;
        let problem = match &folded {
            Some(folded) => folded.first.clone(),
            None => self.problem()?,
        };
        let settings = Settings {
            strategy: self.strategy,
            size_threshold: self.size_threshold,
            cpu_fallback_enabled: !self.no_cpu_fallback,
            tile_limit: self.tile_limit,
            tile_engine: self.tile_engine,
            ..Settings::default()
        };
        let knowledge = Knowledge::gather(&self.knowledge, self.rehearsal, open_existing_store)?;
        let rehearsal = knowledge.evidence.realm() == Realm::Rehearsal;
        let on_cpu = match self.device.as_deref() {
            Some(device) => device == "cpu",
            None => !knowledge.has_accelerator(),
        };
        let plan = plan(&problem, &settings, &knowledge.situation(on_cpu), &knowledge.evidence);
        let tunings: Vec<Tuning> = knowledge
            .store
            .tunings()
            .into_iter()
            .filter(|it| {
                it.tuned.problem.convolution() == Some(&problem) && (it.source == RecordSource::Rehearsal) == rehearsal
            })
            .collect();
        if self.json {
            let mut value = plan_to_json(&problem, &plan);
            if let Some(folded) = &folded {
                value["problem"] = json!(folded.volume.to_string());
                value["folded"] = json!({"first": problem.to_string(), "parts": folded.parts});
            }
            value["strategy"] = json!(settings.strategy.name());
            value["device"] = json!(if on_cpu { "cpu" } else { "gpu" });
            value["rehearsal"] = json!(rehearsal);
            value["tunings"] = tunings.iter().map(tunings::to_json).collect();
            value["machine"] = knowledge.to_json();
            value["kept_elsewhere"] = knowledge.kept_elsewhere().iter().map(KeptElsewhere::to_json).collect();
            print_safe_json(&value)?;
        } else {
            print_text(&describe(&problem, folded.as_ref(), &plan, &tunings, &knowledge, on_cpu))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The 2-d convolutions that a 3-d one is folded into; `None` without a 3-d one.
    fn folded(&self) -> anyhow::Result<Option<Folded>> {
        let [key] = self.convolution.as_slice() else { return Ok(None) };
        if !matches!(key.split(':').nth(2), Some("ncdhw" | "ndhwc")) || self.has_options() {
            return Ok(None);
        }
        let volume: Volume = key.parse().context(format!("{key:?} is not a 3-d convolution"))?;
        let fold = volume.fold(volume.fold_limit())?;
        let first = fold.parts.first().context("it has no parts")?.problem.clone();
        Ok(Some(Folded { volume, first, parts: fold.parts.len() }))
    }

    /// Whether there are options that a key already contains.
    fn has_options(&self) -> bool {
        let options = [
            self.stride.is_some(),
            self.padding.is_some(),
            self.dilation.is_some(),
            self.groups.is_some(),
            self.dtype.is_some(),
            self.layout.is_some(),
            self.direction.is_some(),
            self.transposed,
        ];
        options.contains(&true)
    }

    fn problem(&self) -> anyhow::Result<Problem> {
        let [input, filter] = match self.convolution.as_slice() {
            [key] => {
                if self.has_options() {
                    bail!(
                        "a key says everything already: to use --stride, --direction and the like, give the input and the filter"
                    );
                }
                let hint = "hint: write it as `unhang plan 1x16x64x64 32x3x3 --padding 1`, or as a whole key such as \
                            forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";
                return key.parse::<Problem>().context(hint).context(format!("{key:?} is not a convolution"));
            }
            [input, filter] => [input, filter],
            other => bail!("{} words do not name a convolution", other.len()),
        };
        let [batch, in_channels, height, width] = shapes::exactly("the input", input, "1x16x64x64")?;
        let groups = self.groups.unwrap_or(1);
        let (out_channels, kernel) = self::filter(filter, in_channels, groups, self.transposed)?;
        let stride = pair("--stride", self.stride.as_deref(), 1)?;
        let dilation = pair("--dilation", self.dilation.as_deref(), 1)?;
        Ok(Problem::new(Specification {
            batch,
            in_channels,
            in_size: [height, width],
            out_channels,
            kernel,
            stride,
            padding: padding(self.padding.as_deref(), kernel, dilation, stride)?,
            dilation,
            groups,
            transposed: self.transposed,
            output_padding: pair("--output-padding", self.output_padding.as_deref(), 0)?,
            data_type: self.dtype.unwrap_or(DataType::F32),
            layout: self.layout.unwrap_or(Layout::Nchw),
            direction: self.direction.unwrap_or(Direction::Forward),
        })?)
    }
}

/// Output channels and the filter's size: `32x3x3`, or the four numbers of torch's weight, whose channels must match.
fn filter(text: &str, in_channels: i64, groups: i64, transposed: bool) -> anyhow::Result<(i64, [i64; 2])> {
    let Some(&[first, second, height, width]) = shapes::numbers(text).as_deref() else {
        let [out_channels, height, width] = shapes::exactly("the filter", text, "32x3x3")?;
        return Ok((out_channels, [height, width]));
    };
    // Torch puts the output's channels first; for a transposed convolution, the input's.
    let (out_channels, taken) =
        if transposed { (second.saturating_mul(groups), first) } else { (first, second.saturating_mul(groups)) };
    if taken != in_channels {
        bail!("the filter {text:?} takes {taken} channels, and the input has {in_channels}");
    }
    Ok((out_channels, [height, width]))
}

fn pair(what: &str, text: Option<&str>, default: i64) -> anyhow::Result<[i64; 2]> {
    text.map_or(Ok([default; 2]), |text| shapes::pair(what, text))
}

/// Zeros on each side; accepts torch's words too. `same` is a number only if the filter can be centred.
fn padding(text: Option<&str>, kernel: [i64; 2], dilation: [i64; 2], stride: [i64; 2]) -> anyhow::Result<[i64; 2]> {
    match text {
        Some("valid") => Ok([0; 2]),
        Some("same") if stride != [1; 2] => bail!("--padding same needs a stride of 1, as in torch"),
        Some("same") => {
            let both = [0, 1].map(|axis| dilation[axis].saturating_mul(kernel[axis].saturating_sub(1)));
            if both.iter().any(|zeros| zeros % 2 != 0) {
                bail!("--padding same is not the same on both sides of an even filter: torch pads the input first");
            }
            Ok(both.map(|zeros| zeros / 2))
        }
        other => pair("--padding", other, 0),
    }
}

/// A plan for other programs.
pub(super) fn plan_to_json(problem: &Problem, plan: &Plan) -> Value {
    json!({
        "problem": problem.to_string(),
        "engine": plan.choice().name(),
        "engines": plan.engines.iter().map(|engine| engine.name()).collect::<Vec<_>>(),
        "tile": plan.tile.map(|tile| json!({"engine": tile.inner.name(), "output_limit": tile.output_limit})),
        "reason": plan.reason,
        "evidence": plan.evidence.iter().map(|it| json!({
            "engine": it.engine.name(),
            "verdict": it.verdict.name(),
            "source": it.source.name(),
            "text": it.text,
        })).collect::<Vec<_>>(),
        "warnings": plan.warnings,
    })
}

fn describe(
    problem: &Problem,
    folded: Option<&Folded>,
    plan: &Plan,
    tunings: &[Tuning],
    knowledge: &Knowledge,
    on_cpu: bool,
) -> String {
    let style = Style::for_stream(&std::io::stdout());
    let mut text = String::new();
    let mut line = |name: &str, content: &str| {
        let laid_out = wrapped(&printable(content), 13, 13);
        let _ = writeln!(text, "{}{}", style.paint(&format!("{name:<13}"), Colour::Bold), laid_out.trim_start());
    };
    let rehearsal = knowledge.evidence.realm() == Realm::Rehearsal;
    if knowledge.is_about_an_emulated_card() {
        line("rehearsal", ON_EMULATED_CARD);
    } else if rehearsal {
        line("rehearsal", "what follows rests on a rehearsed card, not on a real one");
    }
    match folded {
        Some(Folded { volume, parts, .. }) => {
            line("convolution", &volume.to_string());
            let whole = matches!(plan.choice(), EngineName::Aten | EngineName::Miopen);
            let how = if whole { "asked for as a whole; folded it would be" } else { "folded into" };
            line("2-d parts", &format!("{how} {parts}, the first of which is planned here: {problem}"));
        }
        None => line("convolution", &problem.to_string()),
    }
    let mut engine = plan.choice().to_string();
    if let Some(tile) = plan.tile {
        engine += &format!(", {} inside, at most {} output pixels a side", tile.inner, tile.output_limit);
    }
    line("engine", &engine);
    line("why", &plan.reason);
    let rest: Vec<&str> = plan.engines.iter().skip(1).map(|engine| engine.name()).collect();
    line("fallback", &if rest.is_empty() { "none; the error is raised".to_owned() } else { rest.join(", then ") });
    for (index, reference) in plan.evidence.iter().enumerate() {
        line(if index == 0 { "evidence" } else { "" }, &format!("- {reference}"));
    }
    if plan.evidence.is_empty() {
        line("evidence", "none about this convolution");
    }
    let is_played = rehearsal && !knowledge.is_about_an_emulated_card();
    let elsewhere = if is_played { Vec::new() } else { knowledge.kept_elsewhere() };
    for (index, kept) in elsewhere.iter().enumerate() {
        line(if index == 0 { "elsewhere" } else { "" }, &format!("- {}", kept.in_words()));
    }
    for (index, tuning) in tunings.iter().enumerate() {
        line(if index == 0 { "GPU kernels" } else { "" }, &format!("- {}", tunings::in_words(tuning)));
    }
    for warning in &plan.warnings {
        line("warning", warning);
    }
    let place = if on_cpu { "tensors in the host's memory" } else { "tensors on the GPU" };
    line("machine", &format!("{}; {place}", knowledge.description()));
    line("", "Torch was not asked: which engines are here is judged from the machine's description.");
    text
}

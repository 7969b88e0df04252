//! The hang map as data: a grid of channels and sizes for each engine, direction and data type.

use std::collections::BTreeMap;

use unhang_conv::{DataType, Direction};
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Record, RecordSource};

use crate::axes::Axes;
use crate::data::Report;

/// One cell of a map: everything known about the convolutions that belong there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// The row, counted from 0.
    pub row: usize,
    /// The column, counted from 0.
    pub column: usize,
    /// The worst verdict.
    pub verdict: Verdict,
    /// The number of records.
    pub count: usize,
    /// The number of records with that verdict.
    pub worst: usize,
    /// The shortest time among those that work.
    pub seconds: Option<f64>,
}

/// A grid of verdicts.
#[derive(Debug, Clone, PartialEq)]
pub struct Map {
    /// The engine.
    pub engine: EngineName,
    /// The profile or solver family, or empty.
    pub variant: String,
    /// The direction.
    pub direction: Direction,
    /// The type of the elements.
    pub data_type: DataType,
    /// Labels of the rows: channels.
    pub rows: Vec<String>,
    /// Labels of the columns: sizes.
    pub columns: Vec<String>,
    /// The cells with at least one record.
    pub cells: Vec<Cell>,
}

/// From the worst to the best.
pub(crate) const SEVERITY: [Verdict; 6] =
    [Verdict::Hangs, Verdict::Crashes, Verdict::Wrong, Verdict::Error, Verdict::Unsupported, Verdict::Works];

fn severity(verdict: Verdict) -> usize {
    SEVERITY.iter().position(|it| *it == verdict).unwrap_or_default()
}

/// Whether a record belongs in the map: it was observed here or rehearsed. Others' claims are listed, not drawn.
pub(crate) fn is_drawn(record: &Record) -> bool {
    matches!(record.source, RecordSource::Probe | RecordSource::Run | RecordSource::Rehearsal)
}

impl Report {
    pub(crate) fn axes(&self) -> Axes {
        Axes::new(self.records.iter().filter(|it| is_drawn(it)).map(|it| &it.problem))
    }

    /// The hang map: one grid for each engine, variant, direction and data type with any record.
    pub fn maps(&self) -> Vec<Map> {
        let axes = self.axes();
        let mut grids: BTreeMap<_, BTreeMap<(usize, usize), Vec<&Record>>> = BTreeMap::new();
        for record in self.records.iter().filter(|it| is_drawn(it)) {
            let problem = &record.problem;
            let which = (record.engine, record.variant.clone(), problem.direction(), problem.data_type());
            grids.entry(which).or_default().entry(axes.place(problem)).or_default().push(record);
        }
        grids
            .into_iter()
            .map(|((engine, variant, direction, data_type), places)| Map {
                engine,
                variant,
                direction,
                data_type,
                rows: axes.rows(),
                columns: axes.columns(),
                cells: places.into_iter().map(|((row, column), records)| cell(row, column, &records)).collect(),
            })
            .collect()
    }
}

fn cell(row: usize, column: usize, records: &[&Record]) -> Cell {
    let verdict = records.iter().map(|it| it.verdict).min_by_key(|it| severity(*it)).unwrap_or(Verdict::Works);
    let worst = records.iter().filter(|it| it.verdict == verdict).count();
    let works = records.iter().filter(|it| it.verdict.is_good());
    let seconds = works.filter_map(|it| it.seconds).min_by(f64::total_cmp);
    Cell { row, column, verdict, count: records.len(), worst, seconds }
}

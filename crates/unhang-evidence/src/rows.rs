//! The rows of the file and their meaning. Rows that cannot be read are skipped: a newer version may have written
//! them, or they are damaged.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use unhang_conv::Problem;
use unhang_engine::{EngineName, Tuned};

use crate::process::Owner;
use crate::record::{Canary, Filter, Intent, IntentId, Record, RecordSource, Seen, Tuning};
use crate::time;

pub(crate) fn put_record(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    // If this report has no time, the earlier time is kept.
    let sql = format!(
        "INSERT INTO records ({RECORD_COLUMNS}, arrival) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, {NEXT_ARRIVAL})
         ON CONFLICT DO UPDATE SET
         seconds = coalesce(excluded.seconds, seconds), first_seconds = coalesce(excluded.first_seconds, first_seconds),
         detail = excluded.detail, unix_seconds = excluded.unix_seconds, arrival = excluded.arrival"
    );
    connection
        .prepare_cached(&sql)?
        .execute(params![
            record.machine,
            record.problem.to_string(),
            record.engine.name(),
            record.variant,
            record.source.name(),
            record.verdict.name(),
            record.seconds,
            record.first_seconds,
            record.detail,
            record.unix_seconds,
        ])
        .map(drop)
}

/// After everything that is there, whatever the clock says.
const NEXT_ARRIVAL: &str = "(SELECT 1 + max(coalesce((SELECT max(arrival) FROM records), 0),
                             coalesce((SELECT max(arrival) FROM intents), 0)))";

const RECORD_COLUMNS: &str =
    "machine, problem, engine, variant, source, verdict, seconds, first_seconds, detail, unix_seconds";

fn record(row: &Row<'_>) -> rusqlite::Result<Option<(i64, Record)>> {
    let text = |index: usize| row.get::<_, String>(index);
    let (problem, engine, source, verdict) = (text(1)?, text(2)?, text(4)?, text(5)?);
    let parts = (problem.parse(), engine.parse(), source.parse(), verdict.parse());
    let (Ok(problem), Ok(engine), Ok(source), Ok(verdict)) = parts else { return Ok(None) };
    let record = Record {
        problem,
        engine,
        variant: text(3)?,
        machine: text(0)?,
        verdict,
        seconds: row.get(6)?,
        first_seconds: row.get(7)?,
        detail: text(8)?,
        source,
        unix_seconds: row.get(9)?,
    };
    Ok(Some((row.get(10)?, record)))
}

/// The rows that can be read. Skips a row with a wrong type of value; a damaged file is an error.
fn readable<T>(rows: impl Iterator<Item = rusqlite::Result<Option<T>>>) -> rusqlite::Result<Vec<T>> {
    let mut result = Vec::new();
    for row in rows {
        match row {
            Ok(Some(value)) => result.push(value),
            Ok(None) => {}
            Err(error) if error.sqlite_error_code().is_none() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(result)
}

/// The `WHERE` clause of a filter, for a table that has some of the columns.
fn condition(filter: &Filter, has_verdict: bool) -> (String, Vec<Value>) {
    let mut fields = vec![
        ("machine", filter.machine.clone()),
        ("problem", filter.problem.as_ref().map(Problem::to_string)),
        ("engine", filter.engine.map(|it| it.name().to_owned())),
        ("source", filter.source.map(|it| it.name().to_owned())),
    ];
    if has_verdict {
        fields.push(("verdict", filter.verdict.map(|it| it.name().to_owned())));
    }
    let (mut terms, mut values) = (vec!["1".to_owned()], Vec::new());
    for (column, value) in fields {
        if let Some(value) = value {
            terms.push(format!("{column} = ?"));
            values.push(Value::Text(value));
        }
    }
    (terms.join(" AND "), values)
}

pub(crate) fn records(connection: &Connection, filter: &Filter) -> rusqlite::Result<Vec<(i64, Record)>> {
    let (condition, values) = condition(filter, true);
    let sql = format!("SELECT {RECORD_COLUMNS}, arrival FROM records WHERE {condition} ORDER BY arrival");
    let mut statement = connection.prepare_cached(&sql)?;
    readable(statement.query_map(params_from_iter(values), record)?)
}

/// The records that arrived last, in order of arrival.
pub(crate) fn newest_records(
    connection: &Connection,
    filter: &Filter,
    most: u64,
) -> rusqlite::Result<Vec<(i64, Record)>> {
    let (condition, mut values) = condition(filter, true);
    values.push(Value::Integer(most as i64));
    let sql = format!("SELECT {RECORD_COLUMNS}, arrival FROM records WHERE {condition} ORDER BY arrival DESC LIMIT ?");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut found = readable(statement.query_map(params_from_iter(values), record)?)?;
    found.reverse();
    Ok(found)
}

/// Keeps the imported records that arrived last. Returns how many were deleted.
pub(crate) fn forget_oldest_imports(connection: &Connection, most: u64) -> rusqlite::Result<usize> {
    connection
        .prepare_cached(
            "DELETE FROM records WHERE source = ?1 AND arrival <=
             (SELECT arrival FROM records WHERE source = ?1 ORDER BY arrival DESC LIMIT 1 OFFSET ?2)",
        )?
        .execute(params![RecordSource::Import.name(), most as i64])
}

pub(crate) fn forget(connection: &Connection, filter: &Filter) -> rusqlite::Result<usize> {
    let transaction = connection.unchecked_transaction()?;
    let (in_records, values) = condition(filter, true);
    let count = transaction.execute(&format!("DELETE FROM records WHERE {in_records}"), params_from_iter(values))?;
    // An intent has no verdict. It means "did not finish", so it is deleted unless the filter names another verdict.
    if filter.verdict.is_none_or(|verdict| verdict == unhang_engine::Verdict::Hangs) {
        let found = intents(&transaction, filter)?;
        for (_, id, _, _) in found.iter().filter(|(_, _, intent, owner)| left_behind(intent, owner)) {
            remove_intent(&transaction, *id)?;
        }
    }
    // A canary is about an engine on a machine. It is deleted when everything about them is. Its name says more behind
    // the engine's: a family or type, the place of a card, that it was rehearsed.
    if filter.problem.is_none() && filter.verdict.is_none() && filter.source.is_none() {
        let machine = filter.machine.clone();
        let engine = filter.engine.map(|engine| engine.name());
        transaction.execute(
            "DELETE FROM canaries WHERE (?1 IS NULL OR machine = ?1)
             AND (?2 IS NULL OR name = ?2 OR substr(name, 1, length(?2) + 1) IN (?2 || ':', ?2 || '@', ?2 || ' '))",
            params![machine, engine],
        )?;
    }
    // Tunings are about our kernels on a device, whatever the machine around it.
    let ours = filter.engine.is_none_or(|engine| engine == EngineName::Jit);
    let mut tunings = 0;
    if ours && filter.machine.is_none() && filter.verdict.is_none() {
        tunings = transaction.execute(
            "DELETE FROM tunings WHERE (?1 IS NULL OR problem = ?1) AND (?2 IS NULL OR source = ?2)",
            params![filter.problem.as_ref().map(Problem::to_string), filter.source.map(|it| it.name())],
        )?;
    }
    transaction.commit()?;
    Ok(count + tunings)
}

pub(crate) fn put_tuning(connection: &Connection, tuning: &Tuning) -> rusqlite::Result<()> {
    let tuned = &tuning.tuned;
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO tunings VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            tuned.device,
            tuned.problem.to_string(),
            tuned.kernels,
            tuned.compiler,
            tuned.driver,
            tuned.choice,
            tuned.seconds,
            tuned.spread,
            tuned.model_choice,
            tuned.model_seconds,
            tuned.candidates,
            tuned.detail,
            tuning.source.name(),
            tuning.unix_seconds,
        ])
        .map(drop)
}

/// A measurement from here replaces one from elsewhere, never the other way round.
pub(crate) fn import_tuning(connection: &Connection, tuning: &Tuning) -> rusqlite::Result<()> {
    let about = params![tuning.tuned.device, tuning.tuned.problem.to_string(), RecordSource::Import.name()];
    let own: i64 = connection
        .prepare_cached("SELECT count(*) FROM tunings WHERE device = ?1 AND problem = ?2 AND source <> ?3")?
        .query_row(about, |row| row.get(0))?;
    if own == 0 { put_tuning(connection, tuning) } else { Ok(()) }
}

pub(crate) fn tunings(connection: &Connection) -> rusqlite::Result<Vec<Tuning>> {
    let mut statement = connection.prepare_cached(
        "SELECT device, problem, kernels, compiler, driver, choice, seconds, spread, model_choice, model_seconds,
         candidates, detail, source, unix_seconds FROM tunings ORDER BY device, problem",
    )?;
    let rows = statement.query_map([], |row| {
        let text = |index: usize| row.get::<_, String>(index);
        let (problem, source) = (text(1)?, text(12)?);
        let (Ok(problem), Ok(source)) = (problem.parse(), source.parse()) else { return Ok(None) };
        let tuned = Tuned {
            problem,
            device: text(0)?,
            kernels: text(2)?,
            compiler: text(3)?,
            driver: text(4)?,
            choice: text(5)?,
            seconds: row.get(6)?,
            spread: row.get(7)?,
            model_choice: text(8)?,
            model_seconds: row.get(9)?,
            candidates: row.get(10)?,
            detail: text(11)?,
        };
        Ok(Some(Tuning { tuned, source, unix_seconds: row.get(13)? }))
    })?;
    readable(rows)
}

pub(crate) fn seen(connection: &Connection, machine: &str) -> rusqlite::Result<Vec<Seen>> {
    let mut statement = connection.prepare_cached(
        "SELECT problem, count, unix_seconds FROM seen WHERE machine = ?1 ORDER BY count DESC, problem",
    )?;
    let rows = statement.query_map([machine], |row| {
        let problem: String = row.get(0)?;
        let count = row.get::<_, i64>(1)?.max(0) as u64;
        let unix_seconds = row.get(2)?;
        Ok(problem.parse().ok().map(|problem| Seen { problem, count, unix_seconds }))
    })?;
    readable(rows)
}

/// Keeps the convolutions of a machine that were asked for last.
pub(crate) fn forget_oldest_seen(connection: &Connection, machine: &str, most: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM seen WHERE machine = ?1 AND problem NOT IN
             (SELECT problem FROM seen WHERE machine = ?1 ORDER BY unix_seconds DESC LIMIT ?2)",
        )?
        .execute(params![machine, most as i64])
        .map(drop)
}

pub(crate) fn put_intent(connection: &Connection, intent: &Intent, owner: &str) -> rusqlite::Result<IntentId> {
    let sql = format!(
        "INSERT INTO intents (machine, problem, engine, variant, source, owner, unix_seconds, arrival)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, {NEXT_ARRIVAL})"
    );
    connection.prepare_cached(&sql)?.execute(params![
        intent.machine,
        intent.problem.to_string(),
        intent.engine.name(),
        intent.variant,
        intent.source.name(),
        owner,
        intent.unix_seconds,
    ])?;
    Ok(IntentId(connection.last_insert_rowid()))
}

pub(crate) fn remove_intent(connection: &Connection, id: IntentId) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM intents WHERE id = ?1")?.execute([id.0]).map(drop)
}

fn intents(connection: &Connection, filter: &Filter) -> rusqlite::Result<Vec<(i64, IntentId, Intent, String)>> {
    let (condition, values) = condition(filter, false);
    let sql = format!(
        "SELECT id, machine, problem, engine, variant, source, owner, unix_seconds, arrival FROM intents
         WHERE {condition} ORDER BY id"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(values), |row| {
        let text = |index: usize| row.get::<_, String>(index);
        let (problem, engine, source) = (text(2)?, text(3)?, text(5)?);
        let (Ok(problem), Ok(engine), Ok(source)) = (problem.parse(), engine.parse(), source.parse()) else {
            return Ok(None);
        };
        let (machine, variant, unix_seconds) = (text(1)?, text(4)?, row.get(7)?);
        let intent = Intent { problem, engine, variant, machine, source, unix_seconds };
        Ok(Some((row.get(8)?, IntentId(row.get(0)?), intent, text(6)?)))
    })?;
    readable(rows)
}

fn left_behind(intent: &Intent, owner: &str) -> bool {
    let age = time::now().saturating_sub(intent.unix_seconds);
    Owner::from_text(owner).is_none_or(|owner| !owner.may_come_back(age))
}

pub(crate) fn unresolved(connection: &Connection, machine: &str) -> rusqlite::Result<Vec<(i64, IntentId, Intent)>> {
    let filter = Filter { machine: Some(machine.to_owned()), ..Filter::default() };
    let all = intents(connection, &filter)?;
    Ok(all
        .into_iter()
        .filter(|(_, _, intent, owner)| left_behind(intent, owner))
        .map(|(place, id, intent, _)| (place, id, intent))
        .collect())
}

pub(crate) fn canary(connection: &Connection, machine: &str, name: &str) -> rusqlite::Result<Option<Canary>> {
    connection
        .prepare_cached("SELECT verdict, detail, unix_seconds FROM canaries WHERE machine = ?1 AND name = ?2")?
        .query_row([machine, name], |row| {
            let verdict: String = row.get(0)?;
            let (detail, unix_seconds) = (row.get(1)?, row.get(2)?);
            Ok(verdict.parse().ok().map(|verdict| Canary {
                machine: machine.to_owned(),
                name: name.to_owned(),
                verdict,
                detail,
                unix_seconds,
            }))
        })
        .optional()
        .map(Option::flatten)
}

pub(crate) fn canaries(connection: &Connection) -> rusqlite::Result<Vec<Canary>> {
    let mut statement = connection
        .prepare_cached("SELECT machine, name, verdict, detail, unix_seconds FROM canaries ORDER BY machine, name")?;
    let rows = statement.query_map([], |row| {
        let verdict: String = row.get(2)?;
        let (machine, name, detail, unix_seconds) = (row.get(0)?, row.get(1)?, row.get(3)?, row.get(4)?);
        Ok(verdict.parse().ok().map(|verdict| Canary { machine, name, verdict, detail, unix_seconds }))
    })?;
    readable(rows)
}

pub(crate) fn put_canary(connection: &Connection, canary: &Canary) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO canaries VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![canary.machine, canary.name, canary.verdict.name(), canary.detail, canary.unix_seconds])
        .map(drop)
}

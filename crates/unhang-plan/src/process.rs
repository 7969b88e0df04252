//! The settings of a whole process or of one layer: how to plan, and how to compute. Their defaults, validation and
//! text form are here, once, for every face.

use std::fmt;

use crate::strategy::Settings;

/// How convolutions are planned and computed in a process. Equal settings are the same settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProcessSettings {
    /// How plans are made.
    pub plan: Settings,
    /// In `tiled`: adds one channel where the count is a power of two.
    pub pad_channels: bool,
    /// The most GPU memory, in MiB, that our kernels may use as workspace for one convolution.
    pub workspace_limit: usize,
    /// Whether our GPU kernels are tuned on first use.
    pub tune: bool,
    /// Print each decision once.
    pub verbose: bool,
    /// Keeps decisions; otherwise every call is planned again.
    pub cache_decisions: bool,
}

impl Default for ProcessSettings {
    /// The planner's defaults, except that a process leaves MIOpen's solver families alone unless asked to narrow
    /// them.
    fn default() -> ProcessSettings {
        ProcessSettings {
            plan: Settings { implicit_gemm: false, ..Settings::default() },
            pad_channels: false,
            workspace_limit: 1024,
            tune: false,
            verbose: false,
            cache_decisions: true,
        }
    }
}

/// The value of one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Number(i64),
    /// A name.
    Name(String),
    /// Anything else, as shown to a person.
    Other(String),
}

impl fmt::Display for Value {
    /// As Python prints it: saved graphs contain tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(true) => f.write_str("True"),
            Value::Flag(false) => f.write_str("False"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Name(text) | Value::Other(text) => f.write_str(text),
        }
    }
}

/// An invalid setting: its name, the value, and what is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingError(String);

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingError {}

impl ProcessSettings {
    /// The names of all settings, in the order of the text form.
    pub const NAMES: [&'static str; 10] = [
        "strategy",
        "size_threshold",
        "cpu_fallback_enabled",
        "implicit_gemm",
        "tile_limit",
        "pad_channels",
        "workspace_limit",
        "tune",
        "verbose",
        "cache_decisions",
    ];

    /// The value of a setting by its name.
    pub fn get(&self, name: &str) -> Option<Value> {
        let number = |value: usize| Value::Number(i64::try_from(value).unwrap_or(i64::MAX));
        Some(match name {
            "strategy" => Value::Name(self.plan.strategy.name().to_owned()),
            "size_threshold" => number(self.plan.size_threshold),
            "cpu_fallback_enabled" => Value::Flag(self.plan.cpu_fallback_enabled),
            "implicit_gemm" => Value::Flag(self.plan.implicit_gemm),
            "tile_limit" => number(self.plan.tile_limit),
            "pad_channels" => Value::Flag(self.pad_channels),
            "workspace_limit" => number(self.workspace_limit),
            "tune" => Value::Flag(self.tune),
            "verbose" => Value::Flag(self.verbose),
            "cache_decisions" => Value::Flag(self.cache_decisions),
            _ => return None,
        })
    }

    /// These settings with one of them changed.
    pub fn with(mut self, name: &str, value: &Value) -> Result<ProcessSettings, SettingError> {
        match name {
            "strategy" => {
                let Value::Name(text) = value else {
                    return Err(SettingError(format!("unknown strategy {value}: expected its name")));
                };
                self.plan.strategy = text.parse().map_err(|error| SettingError(format!("{error}")))?;
            }
            "size_threshold" => self.plan.size_threshold = whole(name, value)?,
            "tile_limit" => {
                self.plan.tile_limit = whole(name, value)?;
                if self.plan.tile_limit == 0 {
                    return Err(SettingError("tile_limit is 0: a tile has at least one pixel".to_owned()));
                }
            }
            "workspace_limit" => self.workspace_limit = whole(name, value)?,
            "cpu_fallback_enabled" => self.plan.cpu_fallback_enabled = flag(name, value)?,
            "implicit_gemm" => self.plan.implicit_gemm = flag(name, value)?,
            "pad_channels" => self.pad_channels = flag(name, value)?,
            "tune" => self.tune = flag(name, value)?,
            "verbose" => self.verbose = flag(name, value)?,
            "cache_decisions" => self.cache_decisions = flag(name, value)?,
            _ => {
                let known = ProcessSettings::NAMES.join(", ");
                return Err(SettingError(format!("unknown setting '{name}': expected one of {known}")));
            }
        }
        Ok(self)
    }

    /// The settings as text. Its meaning is the same in every process and version, so a saved graph may contain it.
    pub fn token(&self) -> String {
        let part = |name: &&str| format!("{name}={}", self.get(name).unwrap_or(Value::Other(String::new())));
        ProcessSettings::NAMES.iter().map(part).collect::<Vec<_>>().join(";")
    }

    /// Reads [`ProcessSettings::token`] back. Missing settings get their defaults; unknown ones are an error.
    pub fn from_token(token: &str) -> Result<ProcessSettings, SettingError> {
        let mut settings = ProcessSettings::default();
        for part in token.split(';').filter(|part| !part.is_empty()) {
            let (name, text) = part.split_once('=').unwrap_or((part, ""));
            let value = match text {
                "True" => Value::Flag(true),
                "False" => Value::Flag(false),
                _ => text.parse().map_or_else(|_| Value::Name(text.to_owned()), Value::Number),
            };
            settings =
                settings.with(name, &value).map_err(|error| SettingError(format!("{error} (in token {token:?})")))?;
        }
        Ok(settings)
    }
}

fn whole(name: &str, value: &Value) -> Result<usize, SettingError> {
    let number = if let Value::Number(number) = value { usize::try_from(*number).ok() } else { None };
    number.ok_or_else(|| SettingError(format!("{name} is {value}: it must be a whole number, at least 0")))
}

fn flag(name: &str, value: &Value) -> Result<bool, SettingError> {
    match value {
        Value::Flag(flag) => Ok(*flag),
        other => Err(SettingError(format!("{name} is {other}: it must be True or False"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Strategy;

    #[test]
    fn a_token_is_read_back_as_what_it_was() {
        let default = ProcessSettings::default();
        assert_eq!(
            default.token(),
            "strategy=auto;size_threshold=42;cpu_fallback_enabled=True;implicit_gemm=False;tile_limit=32;\
             pad_channels=False;workspace_limit=1024;tune=False;verbose=False;cache_decisions=True"
        );
        let changed = default.with("strategy", &Value::Name("TILED".into())).unwrap();
        let changed = changed.with("tile_limit", &Value::Number(9)).unwrap();
        let changed = changed.with("tune", &Value::Flag(true)).unwrap();
        assert_eq!(changed.plan.strategy, Strategy::Tiled);
        assert_eq!(ProcessSettings::from_token(&changed.token()), Ok(changed));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let refused = |name: &str, value: Value| ProcessSettings::default().with(name, &value).unwrap_err().to_string();
        assert!(refused("strategy", Value::Name("fastest".into())).contains("fastest"));
        assert_eq!(refused("tile_limit", Value::Number(0)), "tile_limit is 0: a tile has at least one pixel");
        assert_eq!(
            refused("size_threshold", Value::Number(-1)),
            "size_threshold is -1: it must be a whole number, at least 0"
        );
        assert_eq!(refused("tune", Value::Other("'yes'".into())), "tune is 'yes': it must be True or False");
        assert!(refused("colour", Value::Flag(true)).contains("unknown setting 'colour'"));
        assert!(
            ProcessSettings::from_token("colour=red").unwrap_err().to_string().contains("unknown setting 'colour'")
        );
    }
}

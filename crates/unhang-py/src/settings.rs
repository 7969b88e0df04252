//! Settings, for Python.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyString, PyTuple};
use unhang_plan::{ProcessSettings, Strategy, Value};

use crate::errors::invalid;

/// How convolutions are planned, as a value. Equal settings are the same settings.
#[pyclass(frozen, subclass, name = "Settings", module = "unhang")]
pub struct PySettings {
    pub(crate) settings: ProcessSettings,
    token: Py<PyString>,
    number: OnceLock<u32>,
}

/// The settings of this process; the number of each is its index plus one. Equal settings share a number. Taken only
/// with the interpreter's lock.
static NUMBERED: Mutex<Vec<Py<PySettings>>> = Mutex::new(Vec::new());

/// The number by which calls without the interpreter know these settings; never 0.
pub(crate) fn number_of(settings: &Bound<'_, PySettings>) -> u32 {
    *settings.get().number.get_or_init(|| {
        let mut all = NUMBERED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().position(|it| it.get().settings == settings.get().settings);
        let place = known.unwrap_or_else(|| {
            all.push(settings.clone().unbind());
            all.len() - 1
        });
        u32::try_from(place + 1).unwrap_or(u32::MAX)
    })
}

/// The settings with that number.
pub(crate) fn numbered(py: Python<'_>, number: u32) -> Option<Py<PySettings>> {
    let place = usize::try_from(number).ok()?.checked_sub(1)?;
    NUMBERED.lock().unwrap_or_else(PoisonError::into_inner).get(place).map(|it| it.clone_ref(py))
}

/// A Python value; a member of an enumeration becomes its value.
fn value(found: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(flag) = found.cast::<PyBool>() {
        return Ok(Value::Flag(flag.is_true()));
    }
    if let Ok(number) = found.cast::<PyInt>() {
        return Ok(number.extract().map_or_else(|_| Value::Other(number.to_string()), Value::Number));
    }
    if let Ok(text) = found.cast::<PyString>() {
        return Ok(Value::Name(text.to_string()));
    }
    match found.getattr("value") {
        Ok(inner) => value(&inner),
        Err(_) => Ok(Value::Other(found.repr()?.to_string())),
    }
}

fn changed(mut settings: ProcessSettings, changes: Option<&Bound<'_, PyDict>>) -> PyResult<ProcessSettings> {
    for (name, found) in changes.into_iter().flat_map(|changes| changes.iter()) {
        let name: String = name.extract()?;
        let found = match value(&found)? {
            // Shown as Python shows it: a text where a flag is expected has quotes.
            Value::Name(_) if name != "strategy" => Value::Other(found.repr()?.to_string()),
            other => other,
        };
        settings = settings.with(&name, &found).map_err(invalid)?;
    }
    Ok(settings)
}

impl PySettings {
    fn made(py: Python<'_>, settings: ProcessSettings) -> PySettings {
        let token = PyString::new(py, &settings.token()).unbind();
        PySettings { settings, token, number: OnceLock::new() }
    }
}

#[pymethods]
impl PySettings {
    #[new]
    #[pyo3(signature = (strategy = None, **changes))]
    fn new(
        py: Python<'_>,
        strategy: Option<&Bound<'_, PyAny>>,
        changes: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PySettings> {
        let mut settings = ProcessSettings::default();
        if let Some(strategy) = strategy {
            settings = settings.with("strategy", &value(strategy)?).map_err(invalid)?;
        }
        Ok(PySettings::made(py, changed(settings, changes)?))
    }

    /// The settings as text. It means the same in every process, so a traced and saved graph may contain it.
    #[getter]
    fn token(&self, py: Python<'_>) -> Py<PyString> {
        self.token.clone_ref(py)
    }

    /// Reads `token` back. An unknown or unreadable part is an error that names it.
    #[staticmethod]
    fn from_token(py: Python<'_>, token: &str) -> PyResult<PySettings> {
        Ok(PySettings::made(py, ProcessSettings::from_token(token).map_err(invalid)?))
    }

    /// A copy with some settings changed.
    #[pyo3(signature = (**changes))]
    fn changed(&self, py: Python<'_>, changes: Option<&Bound<'_, PyDict>>) -> PyResult<PySettings> {
        Ok(PySettings::made(py, changed(self.settings.clone(), changes)?))
    }

    fn __getattr__(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        match self.settings.get(name) {
            Some(Value::Flag(flag)) => Ok(PyBool::new(py, flag).to_owned().into_any().unbind()),
            Some(Value::Number(number)) => Ok(number.into_pyobject(py)?.into_any().unbind()),
            Some(Value::Name(text) | Value::Other(text)) => Ok(PyString::new(py, &text).into_any().unbind()),
            None => Err(PyAttributeError::new_err(format!("'Settings' object has no attribute '{name}'"))),
        }
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PySettings>().is_ok_and(|other| other.get().settings == self.settings)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.settings.hash(&mut hasher);
        hasher.finish()
    }

    /// The arguments with which pickling and copying call the class.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        for name in ProcessSettings::NAMES {
            named.set_item(name, self.__getattr__(py, name)?)?;
        }
        Ok((PyTuple::empty(py), named))
    }

    fn __repr__(&self) -> String {
        let shown = |name: &&str| match self.settings.get(name) {
            Some(Value::Name(text)) => format!("{name}='{text}'"),
            Some(value) => format!("{name}={value}"),
            None => String::new(),
        };
        format!("Settings({})", ProcessSettings::NAMES.iter().map(shown).collect::<Vec<_>>().join(", "))
    }
}

/// The names of the strategies; see `docs/how-it-decides.md`.
pub(crate) fn strategies() -> Vec<&'static str> {
    Strategy::ALL.iter().map(|strategy| strategy.name()).collect()
}

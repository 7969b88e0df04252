//! Tuning on first use, for Python: contests that torch's calls advance a step at a time. `unhang-session` decides what
//! happens when; torch provides memory and streams, and compares the winner.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use unhang_conv::Problem;
use unhang_engine::EngineName;
use unhang_gpu::{DevicePointers, Prepared, Timing};
use unhang_session::{Contest, Effort, Next, OnGpu, PolledContest, Subject};

use crate::gpu::{PyGpu, PyKernel, failed};
use crate::problem::PyProblem;
use crate::session::PySession;
use crate::watchdog::PyWatchdog;

/// A program with ever new sizes must not fill its memory with contests.
const MOST_CONTESTS: usize = 10_000;

/// The contests of a process.
#[pyclass(frozen, name = "Contests", module = "unhang._core")]
pub struct PyContests(Mutex<HashMap<Problem, Vec<Py<PyContest>>>>);

#[pymethods]
impl PyContests {
    #[new]
    fn new() -> PyContests {
        PyContests(Mutex::default())
    }

    /// The contest for a convolution on a device.
    fn of(&self, py: Python<'_>, gpu: Py<PyGpu>, problem: &PyProblem) -> PyResult<Py<PyContest>> {
        let mut all = locked(&self.0);
        if all.len() >= MOST_CONTESTS
            && !all.contains_key(&problem.problem)
            && let Some(one) = all.keys().next().cloned()
        {
            all.remove(&one);
        }
        let on_devices = all.entry(problem.problem.clone()).or_default();
        if let Some(known) = on_devices.iter().find(|it| it.get().gpu.is(&gpu)) {
            return Ok(known.clone_ref(py));
        }
        let contest = PyContest {
            gpu,
            problem: problem.problem.clone(),
            polled: Mutex::default(),
            pending: Mutex::default(),
            is_claimed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        };
        let contest = Py::new(py, contest)?;
        on_devices.push(contest.clone_ref(py));
        Ok(contest)
    }

    /// All of them.
    fn all(&self, py: Python<'_>) -> Vec<Py<PyContest>> {
        locked(&self.0).values().flatten().map(|contest| contest.clone_ref(py)).collect()
    }
}

/// The candidates for one convolution on one device, and their times so far.
#[pyclass(frozen, name = "Contest", module = "unhang._core")]
pub struct PyContest {
    gpu: Py<PyGpu>,
    problem: Problem,
    /// Set from its first step on.
    polled: Mutex<Option<PolledContest<Arc<Prepared>, Timing>>>,
    /// The next action, once there is memory for it.
    pending: Mutex<Option<Next<Arc<Prepared>>>>,
    is_claimed: AtomicBool,
    is_over: AtomicBool,
}

/// Operands, bias, result, workspace and stream, as in `Kernel.launch`.
type Addresses = (u64, u64, u64, u64, u64, u64);

#[pymethods]
impl PyContest {
    /// Whether it cannot find anything better any more.
    #[getter]
    fn over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The times of everything that was measured: seconds by choice.
    #[getter]
    fn times(&self) -> HashMap<String, Vec<f64>> {
        let times = |it: &Contest| it.times().into_iter().map(|it| (it.choice, it.seconds)).collect();
        self.with(times).unwrap_or_default()
    }

    /// The choices that may still win, fastest first.
    #[getter]
    fn ranked(&self) -> Vec<String> {
        self.with(|it| it.ranked().iter().map(ToString::to_string).collect()).unwrap_or_default()
    }

    /// The choices that failed, and why.
    #[getter]
    fn failures(&self) -> Vec<String> {
        self.with(|it| it.failures().to_vec()).unwrap_or_default()
    }

    /// The number of rounds begun.
    #[getter]
    fn rounds(&self) -> u32 {
        self.with(Contest::rounds).unwrap_or_default()
    }

    /// Claims the next step for the calling thread, until `release`; false if another thread has it.
    fn claim(&self) -> bool {
        !self.is_claimed.swap(true, Ordering::AcqRel)
    }

    /// Ends the calling thread's step.
    fn release(&self) {
        self.is_claimed.store(false, Ordering::Release);
    }

    /// Determines the next action and returns the bytes of workspace that it needs. `None` if there is nothing to do
    /// yet, or the contest is over. Candidates use at most `workspace_limit` bytes.
    fn poll(
        &self,
        py: Python<'_>,
        session: &PySession,
        workspace_limit: u64,
        rehearsed: bool,
    ) -> PyResult<Option<u64>> {
        let engine = self.gpu.get().own()?;
        let next = py.detach(|| {
            let mut polled = locked(&self.polled);
            let begin = || {
                let is_played = engine.driver().description().is_emulated();
                let effort = if is_played { Effort::IN_REHEARSAL } else { Effort::ON_FIRST_USE };
                let is_refused =
                    |choice: &str| session.session.refuses(&self.problem, EngineName::Jit, choice, rehearsed);
                let mut contest = Contest::of_candidates(effort, engine, &self.problem, workspace_limit, is_refused);
                for choice in contest.contenders() {
                    // For example, because the most kernels allowed are already loaded.
                    if let Err(error) = engine.compile_choice_later(&self.problem, choice) {
                        contest.leave_out(choice, &error.to_string());
                    }
                }
                PolledContest::new(contest)
            };
            polled.get_or_insert_with(begin).next(&OnGpu(engine, &self.problem))
        });
        let next = next.map_err(failed)?;
        let kernels = match &next {
            Next::Measure(turns, _) => turns,
            Next::Decide(ranked) => ranked,
            Next::Wait => return Ok(None),
            Next::Over => {
                self.end();
                return Ok(None);
            }
        };
        let bytes = kernels.iter().map(|(_, prepared)| prepared.workspace_bytes()).max().unwrap_or_default();
        *locked(&self.pending) = Some(next);
        Ok(Some(bytes))
    }

    /// Queues the round that `poll` found on the stream, with a watchdog that names a candidate that hangs. Returns
    /// false if everything is measured. The caller guarantees what `Kernel.launch` requires of the memory.
    fn measure(
        &self,
        py: Python<'_>,
        session: &PySession,
        device: i32,
        addresses: Addresses,
        watchdog: Option<&PyWatchdog>,
    ) -> PyResult<bool> {
        let Some(Next::Measure(turns, repeats)) = locked(&self.pending).take_if(|it| matches!(it, Next::Measure(..)))
        else {
            return Ok(false);
        };
        let (first, second, bias, result, workspace, stream) = addresses;
        let pointers = DevicePointers { first, second, bias, result, workspace };
        let rehearsed = device < 0 || session.session.machine().emulated;
        for (choice, prepared) in turns {
            let kernel = PyKernel::new(prepared, self.gpu.clone_ref(py));
            let subject =
                || Subject { candidate: choice.to_string(), ..Subject::new(&self.problem, EngineName::Jit, rehearsed) };
            let timing = py.detach(|| {
                let time = || kernel.time(pointers, stream, repeats);
                watchdog.map_or_else(time, |it| it.watch_candidate(subject(), device, stream, time))
            })?;
            if let Some(polled) = &mut *locked(&self.polled) {
                polled.queued(choice, timing);
            }
        }
        Ok(true)
    }

    /// The kernels that may win after all measurements, fastest first.
    fn finalists(&self, py: Python<'_>) -> Vec<PyKernel> {
        match locked(&self.pending).take() {
            Some(Next::Decide(ranked)) => {
                ranked.into_iter().map(|(_, prepared)| PyKernel::new(prepared, self.gpu.clone_ref(py))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Excludes a kernel.
    fn leave_out(&self, kernel: &PyKernel, why: &str) {
        if let Some(polled) = &mut *locked(&self.polled) {
            polled.leave_out(*kernel.prepared().choice(), why);
        }
    }

    /// Uses this kernel for the convolution from now on, in this process and the next.
    fn won(&self, session: &PySession, kernel: &PyKernel) -> PyResult<()> {
        let (engine, winner) = (self.gpu.get().own()?, *kernel.prepared().choice());
        self.with(|contest| session.session.take_winner(engine, &self.problem, contest, winner));
        self.end();
        Ok(())
    }

    /// Ends the contest and keeps what computes the convolution now.
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(polled) = &mut *locked(&self.polled) {
            polled.end();
        }
    }
}

impl PyContest {
    fn with<T>(&self, look: impl FnOnce(&Contest) -> T) -> Option<T> {
        locked(&self.polled).as_ref().map(|polled| look(polled.contest()))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

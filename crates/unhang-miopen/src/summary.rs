//! The totals at the end of the process: for the closing line of `unhang run`, and for users who asked for them.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use unhang_session::{Totals, say_once as say};

use crate::face;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        // A process without a convolution has nothing to report, and no panic may leave a library's destructor.
        let _ = std::panic::catch_unwind(tell);
    }
    end
};

fn tell() {
    let Some(process) = face::known() else { return };
    let Totals { layers, calls } = process.totals();
    if process.settings().verbose {
        let program = std::env::current_exe().map(|it| it.display().to_string()).unwrap_or_default();
        for ((caller, engine), count) in &calls {
            let convolutions = unhang_machine::counted(*count, "convolution");
            say(&format!(
                "{program} (process {}): {caller} asked for {convolutions} that {engine} computed",
                std::process::id()
            ));
        }
    }
    if !layers.is_empty()
        && let Some(folder) = std::env::var_os("UNHANG_RUN_FOLDER").filter(|it| !it.is_empty())
    {
        let asked: Vec<_> = calls
            .iter()
            .map(|((caller, engine), count)| json!({ "library": caller, "engine": engine, "calls": count }))
            .collect();
        let path = PathBuf::from(folder).join(format!("done-{}-miopen.json", std::process::id()));
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        // The run is over, or its disk is full: the program ended well anyway.
        let _ = file.and_then(|mut file| write!(file, "{}", json!({ "layers": layers, "asked": asked })));
    }
    process.session().store().flush(Duration::from_secs(2));
}

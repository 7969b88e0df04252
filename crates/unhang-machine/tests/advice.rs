//! What the doctor's findings and plan tell the machines in `fixtures/` to do.

use std::fs;
use std::path::{Path, PathBuf};

use unhang_machine::{
    AdviceStep, Environment, Examination, Finding, Options, System, examine, routes, steps, symptoms,
};

/// The variables of a shell in which earlier attempts have set nothing.
const PLAIN: &str = "HOME=/home/user\nPATH=/home/user/venv/bin:/usr/bin:/bin\nVIRTUAL_ENV=/home/user/venv\n";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A machine of the fixtures with these variables alone.
fn examined(name: &str, variables: &str) -> Examination {
    examine(&System::new(&fixture(name), Environment::parse(variables)), &Options::default())
}

/// A machine of the fixtures with these variables added.
fn with(name: &str, variables: &str) -> Examination {
    let before = fs::read_to_string(fixture(name).join("environment")).unwrap();
    examined(name, &format!("{before}{variables}"))
}

fn finding<'e>(examination: &'e Examination, id: &str) -> &'e Finding {
    examination.findings.iter().find(|it| it.id == id).unwrap_or_else(|| panic!("{id}: {:#?}", examination.findings))
}

fn place_of(plan: &[AdviceStep], begins: &str) -> usize {
    let begins_so = |step: &AdviceStep| step.command.as_deref().is_some_and(|command| command.starts_with(begins));
    plan.iter().position(begins_so).unwrap_or_else(|| panic!("no step begins with {begins}: {plan:#?}"))
}

/// Every step that removes the spoof says so: whoever asks about the spoof is shown them all, in order.
#[test]
fn a_plan_for_a_spoofed_machine_unsets_the_variable_before_torch() {
    let plan = steps(&with("rx5700xt-native", "HSA_OVERRIDE_GFX_VERSION=10.3.0\n"));
    let unset = place_of(&plan, "unset HSA_OVERRIDE_GFX_VERSION");
    assert!(plan[unset].settles.contains(&"spoofed-architecture"), "{plan:#?}");
    assert!(plan[unset + 1..].iter().any(|step| step.settles.contains(&"spoofed-architecture")), "{plan:#?}");
    let plan = steps(&with("rx5600xt-rocm5.7", ""));
    assert!(plan[place_of(&plan, "sudo unhang env clean")].settles.contains(&"spoofed-architecture"), "{plan:#?}");
    let plan = steps(&with("rx5700xt-native", "MIOPEN_FIND_ENFORCE=3\n"));
    assert!(!plan[place_of(&plan, "unset")].settles.contains(&"spoofed-architecture"), "{plan:#?}");
}

/// The step that moves a file aside settles what is wrong with the lines in it.
#[test]
fn lines_that_are_moved_aside_need_no_further_step() {
    for name in ["rx5600xt-rocm5.7", "rx5600xt-rocm5.2"] {
        let examination = examined(name, PLAIN);
        let plan = steps(&examination);
        let cleaning = plan.iter().filter(|step| step.command.as_deref().is_some_and(|it| it.contains("env clean")));
        assert_eq!(cleaning.count(), 1, "{name}: {plan:#?}");
        for finding in &examination.findings {
            let fix = finding.fix.as_deref().unwrap_or_default();
            assert!(!fix.contains("`unhang env clean`"), "{name}: without a scope that is --user: {fix}");
        }
    }
    let examination = examined("rx5600xt-rocm5.7", PLAIN);
    let fix = finding(&examination, "env-imaginary").fix.as_deref().unwrap();
    assert!(fix.contains("`sudo unhang env clean --system`"), "{fix}");
    let fix = finding(&examination, "leftover-profile").fix.as_deref().unwrap();
    assert!(fix.contains("`sudo unhang env uninstall --system`"), "{fix}");
}

#[test]
fn each_enforcement_is_described_as_what_it_does() {
    for (value, words, reported) in [
        ("3", "is SEARCH: an exhaustive search", true),
        ("SEARCH_DB_UPDATE", "an exhaustive search", true),
        ("2", "is DB_UPDATE: MIOpen ignores what it has tuned", false),
        ("5", "is DB_CLEAN: MIOpen erases what it has tuned", false),
    ] {
        let examination = with("rx5700xt-native", &format!("MIOPEN_FIND_ENFORCE={value}\n"));
        let found = finding(&examination, "find-enforce-search");
        assert!(found.summary.contains(words), "{found:#?}");
        assert_eq!(found.why.contains("33 minutes"), reported, "{found:#?}");
        assert_eq!(found.confidence.name() == "owners report", reported, "{found:#?}");
    }
}

#[test]
fn a_misspelt_variable_is_named_with_the_right_one() {
    let examination = with("rx5700xt-native", "MIOPEN_FIND_MOD=FAST\n");
    let why = &finding(&examination, "env-imaginary").why;
    assert!(why.starts_with("MIOPEN_FIND_MOD: no such variable; MIOPEN_FIND_MODE is one. (Source"), "{why}");
}

/// A reboot is a new login, and it ends the shell in which variables were unset.
#[test]
fn a_reboot_follows_what_a_shell_is_told() {
    let plan = steps(&with("rx5700-denied", ""));
    let first = &plan[0];
    assert_eq!(first.settles, ["kfd-no-access"]);
    assert!(!first.what.contains("log in again"), "{first:#?}");
    assert!(place_of(&plan, "unset ") < place_of(&plan, "sudo reboot"), "{plan:#?}");
}

/// `python` of another environment has no JAX.
/// A command that is wrapped with the words around it breaks when it is copied.
/// The command that a section of docs/explain.md opens with is the one to type next.

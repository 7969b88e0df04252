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

#[test]
fn work_in_a_container_is_said_to_be_done_inside() {
    let plan = steps(&with("container", ""));
    let said = &plan[0].what;
    assert!(said.ends_with("do the other steps in the new container; start it without -e HSA_OVERRIDE_GFX_VERSION"));
    assert!(plan[0].command.as_deref().unwrap().contains("-v \"$PWD:/work\""), "{plan:#?}");
    let plan = steps(&with("bc250", ""));
    let said = plan.iter().find(|step| !step.ways.is_empty()).map(|step| step.what.as_str()).unwrap();
    assert!(said.contains("Copy unhang's wheel into this folder first. Type the other commands inside"), "{said}");
}

/// `python` of another environment has no JAX.
#[test]
fn the_environment_of_a_framework_is_entered_first() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    };
    for file in
        ["bin/python3", "bin/activate", "lib/python3.12/site-packages/jax_rocm7_plugin-0.10.2.dist-info/METADATA"]
    {
        write(&format!("home/user/jax/{file}"));
    }
    let system = System::new(folder.path(), Environment::parse("HOME=/home/user\nPATH=/usr/bin\n"));
    let options = Options { pythons: vec![PathBuf::from("/home/user/jax")], ..Options::default() };
    let found = examine(&system, &options).software.frameworks;
    assert_eq!(found[0].activate.as_deref(), Some("/home/user/jax/bin/activate"), "{found:#?}");
    let mut examination = with("rx5700xt-jax", "");
    assert_eq!(examination.software.frameworks[0].activate, None, "it is active");
    examination.software.frameworks = found;
    let plan = steps(&examination);
    let commands: Vec<&String> = plan.iter().flat_map(|step| &step.ways).flat_map(|way| &way.commands).collect();
    assert_eq!(commands, [". /home/user/jax/bin/activate && pip install unhang-*.whl", routes::RUN]);
}

/// A command that is wrapped with the words around it breaks when it is copied.
#[test]
fn long_commands_stand_on_lines_of_their_own() {
    for gfx in ["gfx1010", "gfx1013"] {
        let text = routes::in_words(gfx, routes::WHEEL);
        assert!(text.contains("\n       docker run "), "{text}");
        assert!(!text.contains("`docker run"), "{text}");
    }
    for name in ["rx5600xt-rocm5.7", "rx5500xt", "bc250", "rx5700-denied"] {
        for found in with(name, "").findings {
            let fix = found.fix.unwrap_or_default();
            for command in fix.split('`').skip(1).step_by(2) {
                let is_long = command.len() > 60 && (command.contains("pip install") || command.contains("docker run"));
                assert!(!is_long || fix == format!("`{command}`"), "{name}, {}: {fix}", found.id);
            }
        }
    }
}

/// The command that a section of docs/explain.md opens with is the one to type next.
#[test]
fn the_next_command_is_the_sections_own() {
    for (section, command) in [
        ("grey-images", "unhang doctor --self-test"),
        ("ring-timeout", routes::RUN),
        ("queue-preemption", "sudo reboot"),
        ("torch-missing", "unhang explain routes"),
    ] {
        assert_eq!(symptoms::next_command(section, ""), command, "{section}");
    }
}

//! Follows the doctor's plan on every machine in the fixtures, way by way, and asks the doctor again. Only the way to
//! start programs may be left. Our commands are run; the effects of other programs on the machine are simulated.

use std::fs;
use std::path::PathBuf;

use assert_cmd::Command;
use serde_json::Value;

mod machines;

use machines::{copy, fixtures};

/// A machine that its owner works on.
struct Owned {
    folder: tempfile::TempDir,
}

impl Owned {
    fn of(fixture: &str) -> Owned {
        let folder = tempfile::tempdir().unwrap();
        copy(&fixtures().join(fixture), folder.path());
        Owned { folder }
    }

    fn path(&self, path: &str) -> PathBuf {
        let home = self.variable("HOME").unwrap_or_else(|| "/root".to_owned());
        let path = path.replacen('~', &home, 1);
        self.folder.path().join(path.trim_start_matches('/'))
    }

    fn variables(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("environment")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables().iter().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }

    fn set(&self, changes: &[(&str, Option<&str>)]) {
        let mut lines = self.variables();
        for (name, value) in changes {
            lines.retain(|line| line.split('=').next() != Some(name));
            lines.extend(value.map(|value| format!("{name}={value}")));
        }
        fs::write(self.folder.path().join("environment"), lines.join("\n") + "\n").unwrap();
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// The program on this machine.
    fn unhang(&self, arguments: &str) -> std::process::Output {
        let mut command = Command::cargo_bin("unhang").expect("the program is built");
        command.env_clear().args(arguments.split_whitespace()).arg("--root").arg(self.folder.path());
        command.output().expect("it runs")
    }

    fn doctor(&self) -> (Value, Option<i32>) {
        let output = self.unhang("doctor --json");
        (serde_json::from_slice(&output.stdout).expect("JSON"), output.status.code())
    }

    /// The packages of the active environment.
    fn packages(&self) -> String {
        let prefix = self.variable("VIRTUAL_ENV").unwrap_or_else(|| "/usr/local".to_owned());
        self.packages_of(&prefix)
    }

    fn packages_of(&self, prefix: &str) -> String {
        let library = self.path(&format!("{prefix}/lib"));
        let version = fs::read_dir(library).unwrap().next().expect("a Python").unwrap().file_name();
        format!("{prefix}/lib/{}/site-packages", version.to_str().unwrap())
    }

    /// The effect of `pip install` in an environment.
    fn pip(&self, packages: &str, command: &str) {
        if command.contains("unhang-*.whl") {
            self.write(&format!("{packages}/unhang/__init__.py"), "");
            return;
        }
        let devices = command.split(['[', ',', ']']).filter_map(|word| word.strip_prefix("device-"));
        let mut devices: Vec<&str> = devices.collect();
        let version = if devices.is_empty() { "1.13.1+rocm5.2" } else { "2.11.0+rocm7.13" };
        let hip = version.split("rocm").nth(1).unwrap();
        self.write(&format!("{packages}/torch/version.py"), &format!("__version__ = '{version}'\nhip = '{hip}.0'\n"));
        if devices.is_empty() {
            self.write(&format!("{packages}/torch/lib/rocblas/library/TensileLibrary_gfx1030.co"), "");
        }
        devices.sort_unstable();
        devices.dedup();
        for gfx in devices {
            self.write(&format!("{packages}/amd_torch_device_{gfx}-{version}.dist-info/METADATA"), "");
        }
    }

    /// Does what one command does. Panics at an unknown command, so that no advice goes unfollowed.
    fn follow(&self, command: &str) {
        let command = command.strip_prefix("sudo ").unwrap_or(command);
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["unhang", "run", "--", ..] | ["unhang", "run", "--everywhere", ..] | ["unhang", "probe"] => {}
            ["unhang", rest @ ..] => {
                let output = self.unhang(&format!("{} --yes", rest.join(" ")));
                assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
            }
            ["unset", names @ ..] => names.iter().for_each(|name| self.set(&[(name, None)])),
            [python, "-m", "venv", rest @ ..] if python.starts_with("python3") => {
                let version = if *python == "python3" { "python3.13" } else { python };
                let prefix = rest.last().unwrap();
                self.write(&format!("{prefix}/bin/python3"), "");
                self.write(&format!("{prefix}/pyvenv.cfg"), "");
                fs::create_dir_all(self.path(&format!("{prefix}/lib/{version}/site-packages"))).unwrap();
            }
            [".", activate] => {
                let prefix = activate.strip_suffix("/bin/activate").unwrap();
                let prefix = prefix.replacen('~', &self.variable("HOME").unwrap(), 1);
                let path = format!("{prefix}/bin:{}", self.variable("PATH").unwrap());
                self.set(&[("VIRTUAL_ENV", Some(&prefix)), ("PATH", Some(&path))]);
            }
            ["pip", "install", ..] => self.pip(&self.packages(), command),
            [pip, "install", ..] if pip.ends_with("/bin/pip") => {
                self.pip(&self.packages_of(pip.strip_suffix("/bin/pip").unwrap()), command);
            }
            ["usermod", "-aG", "render,video", "\"$USER\""] => {
                for device in ["/dev/kfd", "/dev/dri/renderD128"] {
                    self.write(device, "access=granted\n");
                }
            }
            ["reboot"] => {
                let log = fs::read_to_string(self.path("/var/log/kern.log")).unwrap();
                let boot = "Nov  8 10:05:00 host kernel: [    0.000000] Linux version 5.15.0-119-generic\n";
                self.write("/var/log/kern.log", &(log + boot));
            }
            ["docker", "run", "-it", .., "IMAGE", "bash"] => self.write("/dev/kfd", ""),
            ["docker", "run", "-it", ..] => self.enter_container(),
            _ => panic!("nobody knows what `{command}` does"),
        }
    }

    /// A new container: the machine's kernel and devices, Debian 12's files, and a Python 3.10.
    fn enter_container(&self) {
        for entry in fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            let is_shared = ["sys", "dev", "proc"].iter().any(|name| path.ends_with(name));
            match path.is_dir() {
                true if !is_shared => fs::remove_dir_all(path).unwrap(),
                false => fs::remove_file(path).unwrap(),
                _ => {}
            }
        }
        fs::write(self.folder.path().join("environment"), "HOME=/root\nPATH=/usr/local/bin:/usr/bin\n").unwrap();
        self.write("/lib/x86_64-linux-gnu/libc.so.6", "GNU C Library (Debian) stable release version 2.36.\n");
        self.write("/usr/local/bin/python3", "");
        fs::create_dir_all(self.path("/usr/local/lib/python3.10/site-packages")).unwrap();
    }
}

/// Follows the plan of a machine by one of its ways; returns the doctor's next report.
fn followed(fixture: &str, way: usize) -> (Owned, Value) {
    let machine = Owned::of(fixture);
    let (report, _) = machine.doctor();
    for step in report["steps"].as_array().unwrap() {
        let ways = step["ways"].as_array();
        let ways = ways.map(|ways| ways[way.min(ways.len() - 1)]["commands"].as_array().unwrap().clone());
        let commands = step.get("command").cloned().into_iter().chain(ways.into_iter().flatten());
        for line in commands {
            line.as_str().unwrap().split(" && ").for_each(|command| machine.follow(command));
        }
    }
    let (after, code) = machine.doctor();
    assert_eq!(code, Some(0), "{fixture}, way {way}: {after:#}");
    (machine, after)
}

/// The number of ways in the plan of a machine.
fn ways(fixture: &str) -> usize {
    let (report, _) = Owned::of(fixture).doctor();
    let steps = report["steps"].as_array().unwrap();
    steps.iter().filter_map(|step| Some(step["ways"].as_array()?.len())).max().unwrap_or(1)
}

#[test]
fn a_plan_that_was_followed_leaves_nothing_to_do() {
    let (mut machines, mut all_ways, mut native) = (0, 0, 0);
    for entry in fs::read_dir(fixtures()).unwrap() {
        let fixture = entry.unwrap().file_name().into_string().unwrap();
        if fixture == "half-unreadable" {
            continue; // The advice there is to look as another user; no command changes the machine.
        }
        machines += 1;
        for way in 0..ways(&fixture) {
            all_ways += 1;
            let (machine, after) = followed(&fixture, way);
            for finding in after["findings"].as_array().unwrap() {
                assert_eq!(finding["severity"], "info", "{fixture}, way {way}: {finding:#}");
            }
            // Only the start of programs is left; nothing is requested again.
            let is_start = |command: &Value| {
                let command = command.as_str().unwrap();
                command.starts_with("unhang run ") || command == "unhang probe"
            };
            for step in after["steps"].as_array().unwrap() {
                let is_offer =
                    |way: &Value| way["recommended"] == true && way["what"].as_str().unwrap().contains("native");
                let left = step["ways"].as_array().map_or(&[][..], |ways| ways);
                let commands =
                    left.iter().filter(|way| !is_offer(way)).flat_map(|way| way["commands"].as_array().unwrap());
                let mut commands = step.get("command").into_iter().chain(commands);
                assert!(commands.all(is_start), "{fixture}, way {way}: {step:#}");
            }
            let gpus = after["machine"]["gpus"].as_array().unwrap();
            if let Some(card) = gpus.iter().find(|gpu| gpu["affected"] == true) {
                let torch = &after["machine"]["torch"][0];
                let is_native = torch["architectures"].as_array().is_some_and(|chips| chips.contains(&card["gfx"]));
                assert_eq!(after["verdict"] == "healthy", is_native, "{fixture}, way {way}: {after:#}");
                native += usize::from(is_native);
            }
            drop(machine);
        }
    }
    assert!(machines >= 13 && all_ways >= 18 && native >= 6, "{machines} machines, {all_ways} ways, {native} native");
}

#[test]
fn a_spoof_is_never_installed_beside_a_native_recommendation() {
    for entry in fs::read_dir(fixtures()).unwrap() {
        let fixture = entry.unwrap().file_name().into_string().unwrap();
        let (report, _) = Owned::of(&fixture).doctor();
        let said = report["steps"].to_string();
        assert!(!said.contains("env install"), "{fixture}: {said}");
    }
}

#[test]
fn clean_up_comes_first_and_then_one_of_two_ways() {
    let (report, _) = Owned::of("rx5600xt-rocm5.7").doctor();
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps[0]["command"], "sudo unhang env clean --system", "{steps:#?}");
    assert!(steps[1]["command"].as_str().unwrap().starts_with("unset HSA_OVERRIDE_GFX_VERSION "), "{steps:#?}");
    let ways = steps.last().unwrap()["ways"].as_array().unwrap();
    assert_eq!((ways.len(), &ways[0]["recommended"], &ways[1]["recommended"]), (2, &true.into(), &false.into()));
    for way in ways {
        let commands = way["commands"].as_array().unwrap();
        assert!(commands.iter().any(|command| command.as_str().unwrap().contains("unhang-*.whl")), "{way:#}");
        assert_eq!(commands.last().unwrap(), "unhang run -- python train.py");
    }
}

/// The torch that `--python` names may be of another environment than the active one, whose `python` the last command
/// would start.
#[test]
fn an_environment_that_is_not_active_is_entered_first() {
    let machine = Owned::of("rx5600xt-rocm5.2");
    machine.set(&[("VIRTUAL_ENV", None), ("PATH", Some("/usr/bin:/bin"))]);
    machine.write("/home/user/venv/bin/activate", "");
    let commands = |arguments: &str| -> Vec<String> {
        let report: Value = serde_json::from_slice(&machine.unhang(arguments).stdout).expect("JSON");
        let step = report["steps"].as_array().unwrap().last().unwrap().clone();
        let of_ways =
            step["ways"].as_array().map_or(Vec::new(), |ways| ways[0]["commands"].as_array().unwrap().clone());
        let all = step.get("command").cloned().into_iter().chain(of_ways);
        all.map(|command| command.as_str().unwrap().to_owned()).collect()
    };
    let start = "unhang run -- python train.py";
    let first = commands("doctor --json --python /home/user/venv");
    assert_eq!(first, [". /home/user/venv/bin/activate && pip install unhang-*.whl", start]);
    first[0].split(" && ").for_each(|command| machine.follow(command));
    assert_eq!(commands("doctor --json"), [start]);
    // In a new terminal it has to be entered again.
    machine.set(&[("VIRTUAL_ENV", None), ("PATH", Some("/usr/bin:/bin"))]);
    let again = commands("doctor --json --python /home/user/venv/bin/python3");
    assert_eq!(again, [". /home/user/venv/bin/activate", start]);
}

/// Somebody installs a native torch after `unhang env install`: the doctor names our own file, and how to remove it.
#[test]
fn our_own_spoof_is_named_where_a_native_torch_came_later() {
    let (machine, _) = followed("rx5600xt-rocm5.7", 0);
    let output = machine.unhang("env install --system --profile rocm5.7 --yes");
    assert!(output.status.success());
    let (report, code) = machine.doctor();
    assert_eq!(code, Some(1), "{report:#}");
    let finding = report["findings"].as_array().unwrap().iter().find(|it| it["id"] == "spoofed-architecture").unwrap();
    assert_eq!(finding["places"][0]["path"], "/etc/profile.d/unhang.sh");
    let first = &report["steps"][0];
    assert_eq!(first["command"], "sudo unhang env clean --system");
    assert!(first["what"].as_str().unwrap().contains("/etc/profile.d/unhang.sh"), "{first:#}");
    machine.follow("sudo unhang env clean --system");
    let (after, code) = machine.doctor();
    assert_eq!((code, &after["verdict"]), (Some(0), &"healthy".into()), "{after:#}");
}

/// The doctor does not ask `unhang env clean` again for what that leaves alone.
#[test]
fn a_command_that_changes_nothing_is_not_printed_again() {
    let machine = Owned::of("rx5600xt-rocm5.7");
    machine.write("/etc/systemd/system/train.service", "[Service]\nEnvironment=HSA_ENABLE_SDMA=0\n");
    machine.follow("sudo unhang env clean --system");
    let (report, _) = machine.doctor();
    let said = report["steps"].to_string();
    assert!(!said.contains("env clean") && said.contains("by hand") && said.contains("train.service"), "{said}");
}

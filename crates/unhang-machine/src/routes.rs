//! The ways to get a torch that runs on an RDNA1 card, as complete recipes, best first; and what unhang adds to each.
//!
//! None of them was tried by us: nobody here has a card. Each says who reports it.

use crate::finding::Confidence;
use crate::frameworks::Framework;
use crate::shell::quoted;
use crate::software::Torch;

/// A recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What it is, in a few words.
    pub title: String,
    /// The commands, one a line, that install it.
    pub commands: Vec<String>,
    /// How to start a program then.
    pub start: &'static str,
    /// What to know first, and who reports that it works.
    pub notes: String,
    /// What unhang does for it.
    pub unhang: &'static str,
    /// How sure we are.
    pub confidence: Confidence,
}

/// How to start a program with protection.
pub const RUN: &str = "unhang run -- python train.py";
/// How to start it if the card must pass as gfx1030, whatever else is installed.
pub const RUN_SPOOFED: &str = "HSA_OVERRIDE_GFX_VERSION=10.3.0 unhang run -- python train.py";
/// The newest TensorFlow for ROCm, of those tried, that has gfx1030 in its list of chips.
pub const TENSORFLOW_PIP: &str = "pip install 'tensorflow-rocm==2.13.1.600'";

/// unhang's wheel by its bare name, if the program does not know its path.
pub const WHEEL: &str = "unhang-*.whl";

/// Where [`WHEEL`] comes from.
pub const ABOUT_WHEEL: &str =
    "unhang-*.whl is a release's wheel, or the one that `make wheel` leaves in dist/ of a checkout.";

/// Installs unhang's wheel into the active environment.
pub fn install_wheel(wheel: &str) -> String {
    format!("pip install {wheel}")
}

/// Makes a new environment and enters it. Each way has its own folder, so that whoever tries a second way keeps the first.
fn new_environment(options: &str, folder: &str) -> String {
    format!("-m venv{options} ~/{folder} && . ~/{folder}/bin/activate &&")
}

/// AMD's native wheels with code for all of these chips. They exist for three of RDNA1's four. The names of chips compose
/// (mudler/LocalAI PR 10997).
pub fn native_wheels(chips: &[&str]) -> Option<String> {
    let is_left_out = |gfx: &&str| crate::chips::is_affected_gfx(gfx) && *gfx == "gfx1013";
    if chips.is_empty() || chips.iter().any(is_left_out) {
        return None;
    }
    let devices: Vec<String> = chips.iter().map(|gfx| format!("device-{gfx}")).collect();
    let devices = devices.join(",");
    Some(format!(
        "python3 {} pip install --index-url https://repo.amd.com/rocm/whl-multi-arch/ 'torch[{devices}]' \
         'torchvision[{devices}]'",
        new_environment("", "rdna1-native")
    ))
}

/// How sure we are of these wheels on a chip: owners report gfx1010 and gfx1012.
pub fn of_native_wheels(gfx: &str) -> Confidence {
    match gfx {
        "gfx1010" | "gfx1012" => Confidence::SeenOnACard,
        _ => Confidence::Documented,
    }
}

/// How sure we are of the spoofed stack on a chip: nobody reports one with gfx1013.
pub fn of_spoofed_stack(gfx: &str) -> Confidence {
    match gfx {
        "gfx1013" => Confidence::Inferred,
        _ => Confidence::SeenOnACard,
    }
}

/// Installs unhang into the Python of a folder of packages (`…/lib/python3.12/site-packages`). A system's Python takes no
/// packages from pip: an environment that sees the system's is made for it.
pub fn install_unhang(packages: &str, wheel: &str) -> String {
    let install = install_wheel(wheel);
    let prefix = std::path::Path::new(packages).ancestors().nth(3).unwrap_or(std::path::Path::new("/"));
    match prefix.to_str().unwrap_or_default() {
        "/" | "/usr" | "/usr/local" => {
            format!("python3 {} {install}", new_environment(" --system-site-packages", "rdna1-unhang"))
        }
        user if user.ends_with("/.local") => format!("python3 -m {install}"),
        prefix => format!("{} install {wheel}", quoted(&format!("{prefix}/bin/pip"))),
    }
}

/// Makes `python` and `unhang` of a shell those beside a torch: enters its environment and installs unhang there, as far as
/// either is needed.
pub fn prepare(torch: &Torch, wheel: &str) -> Option<String> {
    ready(torch.unhang, torch.activate.as_deref(), torch.packages(), wheel)
}

/// The same beside a framework.
pub fn prepare_framework(framework: &Framework, wheel: &str) -> Option<String> {
    ready(framework.unhang, framework.activate.as_deref(), &framework.path, wheel)
}

fn ready(has_unhang: bool, activate: Option<&str>, packages: &str, wheel: &str) -> Option<String> {
    let enter = enter(activate);
    let install = match (has_unhang, &enter) {
        (true, _) => None,
        (false, Some(_)) => Some(install_wheel(wheel)),
        (false, None) => Some(install_unhang(packages, wheel)),
    };
    let commands: Vec<String> = enter.into_iter().chain(install).collect();
    (!commands.is_empty()).then(|| commands.join(" && "))
}

/// Enters the environment that has this script.
pub fn enter(activate: Option<&str>) -> Option<String> {
    activate.map(|script| format!(". {}", quoted(script)))
}

/// The options that give a container access to the card. The group by its number: `render` has another one on each
/// system, and images such as Python's lack that group, so docker refuses the name.
pub const CONTAINER_DEVICES: &str = "--device /dev/kfd --device /dev/dri --group-add \"$(stat -c %g /dev/kfd)\"";

/// The newest glibc that loads the stack which owners report working under the spoof.
pub const NEWEST_GLIBC: (u32, u32) = (2, 40);

/// Whether a wheel is known by its name alone: where it is, only the reader knows.
pub fn is_bare(wheel: &str) -> bool {
    wheel == WHEEL
}

/// An image with a Python and a glibc that are old enough for that stack.
const PYTHON_IMAGE: &str = "docker.io/library/python:3.10-bookworm";

/// A container whose glibc is old enough for that stack, with the card, this folder and the wheel's in it. Under its name
/// it can be started again, with all that was installed in it.
pub fn container(wheel: &str) -> String {
    let folder = wheel.rsplit_once('/').filter(|_| wheel.starts_with('/'));
    let wheels = folder.map(|(folder, _)| format!(" -v {folder}:{folder}:ro")).unwrap_or_default();
    docker_run(" --name rdna1", &wheels, PYTHON_IMAGE)
}

/// A container of the image that the reader uses, seen from inside of one: paths here are not the machine's.
pub fn same_container() -> String {
    docker_run("", "", "IMAGE")
}

fn docker_run(name: &str, wheels: &str, image: &str) -> String {
    format!("docker run -it{name} {CONTAINER_DEVICES} -v \"$PWD:/work\"{wheels} -w /work {image} bash")
}

/// Enters that container again.
pub const AGAIN_IN_CONTAINER: &str = "docker start -ai rdna1";

/// Whether Arch's packages are built for a chip.
fn is_built_by_arch(gfx: &str) -> bool {
    ["gfx1010", "gfx1012"].contains(&gfx)
}

/// Installs the stack that owners report working under the spoof into the current Python.
pub const SPOOFED_PIP: &str = "pip install 'numpy<2' torch==1.13.1+rocm5.2 torchvision==0.14.1+rocm5.2 --extra-index-url \
                               https://download.pytorch.org/whl/rocm5.2";

/// Installs it into a new environment.
pub fn spoofed_stack() -> String {
    format!("python3.10 {} {SPOOFED_PIP}", new_environment("", "rdna1-rocm5.2"))
}

/// The ways for a chip.
pub fn routes(gfx: &str, wheel: &str) -> Vec<Route> {
    let mut all = Vec::new();
    if let Some(command) = native_wheels(&[gfx]) {
        all.push(Route {
            title: format!("AMD's wheels with native code for {gfx}"),
            commands: vec![command, install_wheel(wheel)],
            start: RUN,
            notes: "Since 2026; Linux and Windows. No spoof: HSA_OVERRIDE_GFX_VERSION must not be set. (Source: \
                    easydiffusion/torchruntime issue 34, ROCm/TheRock issues 5954 and 7609, patientx-cfz/comfyui-rocm issue \
                    33.)"
                .to_owned(),
            unhang: "native code has the compiler's work-arounds, and `unhang run` repairs the few places that lack one. MIOpen \
                     remains: its spatial batch normalisation does not compile for gfx1010, and it searches for minutes",
            confidence: of_native_wheels(gfx),
        });
    }
    if is_built_by_arch(gfx) {
        all.push(Route {
            title: format!("Arch Linux's packages, which are built for {gfx} too"),
            commands: vec![
                "sudo pacman -S python-pytorch-rocm".to_owned(),
                install_unhang("/usr/lib/python3/site-packages", wheel),
            ],
            start: RUN,
            notes:
                "Native too; HSA_OVERRIDE_GFX_VERSION=10.3.0 makes them crash. (Source: legacy-rocm-build issue 887.)"
                    .to_owned(),
            unhang: "the same as with AMD's wheels",
            confidence: Confidence::SeenOnACard,
        });
    }
    all.push(Route {
        title: "torch 1.13.1 for ROCm 5.2, spoofed as gfx1030".to_owned(),
        commands: vec![spoofed_stack(), install_wheel(wheel)],
        start: RUN,
        notes: format!(
            "Python 3.10 or older (Ubuntu 22.04 has 3.10; elsewhere take pyenv or uv), and glibc {}.{} or older. On another \
             system{} start a container, and type the commands above inside it:\n       {}\n   `{AGAIN_IN_CONTAINER}` \
             enters it again later.\n   The next wheels, for ROCm 5.3 and later, are reported to hang. (Source: ROCm issue \
             2527.)",
            NEWEST_GLIBC.0,
            NEWEST_GLIBC.1,
            if is_bare(wheel) { " copy unhang's wheel into this folder," } else { "" },
            container(wheel)
        ),
        unhang: "safety: gfx1030 code lacks the work-arounds that RDNA1 needs. `unhang run` sets the variables and repairs code \
                 as it loads (emulated, not yet seen on a card). It uses only engines that passed a test, and ends a program that hangs",
        confidence: of_spoofed_stack(gfx),
    });
    all
}

/// The recipes for people to read.
pub fn in_words(gfx: &str, wheel: &str) -> String {
    let mut text = format!(
        "Ways to get a torch that runs on {gfx}, best first. We have tried none of them: nobody here has a card.\n"
    );
    for (index, route) in routes(gfx, wheel).into_iter().enumerate() {
        text.push_str(&format!("\n{}. {} [{}]\n", index + 1, route.title, route.confidence.name()));
        for command in &route.commands {
            text.push_str(&format!("       {command}\n"));
        }
        text.push_str(&format!("       {}\n   {}\n   What unhang adds: {}.\n", route.start, route.notes, route.unhang));
    }
    if wheel.ends_with(WHEEL) {
        text.push_str(&format!("\n{ABOUT_WHEEL}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_an_environment_as_a_shell_takes_it() {
        let command = |prefix: &str| install_unhang(&format!("{prefix}/lib/python3.12/site-packages"), WHEEL);
        assert_eq!(command("/home/anna/venv"), "/home/anna/venv/bin/pip install unhang-*.whl");
        assert_eq!(command("/home/anna/my venv"), "'/home/anna/my venv/bin/pip' install unhang-*.whl");
        assert_eq!(command("/srv/$(id)"), "'/srv/$(id)/bin/pip' install unhang-*.whl");
    }
}

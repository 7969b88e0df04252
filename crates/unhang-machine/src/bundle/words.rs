//! What a bundle may say: names of folders and values of variables that any machine of this kind could have. What is not among them is
//! somebody's own, and becomes a number or goes.

use std::cell::RefCell;

use crate::variables::{self, Known};

/// Names of folders and files that belong to systems, to Python and to AMD's software. A name is taken apart at its dots, dashes and
/// digits, and every part must be here.
const PARTS: &str = "
    etc home root usr opt lib libexec bin sbin local share include var log run tmp mnt media srv net nfs users data scratch work projects
    venv env envs conda miniconda anaconda mambaforge miniforge pyenv python py site packages dist info torch version dev rocm hip hsa
    miopen cache config bashrc bash profile login zshenv zprofile zshrc pam environment fish conf d systemd user users system service
    rules udev ld so unhang evidence kernels unrepaired json somebody folder host kfd amdgpu dri kern dmesg messages syslog journal txt
    db udb ukdb kdb ufdb doctor self test sh program programs x86 linux gnu libc miopenuserdb sitecustomize autoload cuda cpu gfx machine
    amd radeon rdna kernel opencl llvm versions direct install default conf pytorch rocblas library libs arch current state jax plugin
    tensorflow triton metadata init libamdhip";

/// Words that may occur in the value of any variable.
const WORDS: &str = "on off true false yes no none all auto default stderr stdout native";

/// Options of the compiler that MIOpen's kernels are compiled with, and the parts of LLVM's names for the chip's errata.
const OPTIONS: [&str; 9] =
    ["-Xclang", "-target-feature", "-mllvm", "-O", "-O0", "-O1", "-O2", "-O3", "-mwavefrontsize64"];
const FEATURE_PARTS: &str = "vcmpx permlane hazard exec war vmem to scalar write lds branch smem vector inst fwd prefetch bug nsa mimg offset 3f flat segment \
     clause wavefrontsize32 wavefrontsize64 cumode xnack sramecc has";

/// Hosts that our own texts name.
const HOSTS: [&str; 8] = [
    "github.com",
    "repo.amd.com",
    "repo.radeon.com",
    "download.pytorch.org",
    "pytorch.org",
    "rocm.docs.amd.com",
    "www.amd.com",
    "docs.kernel.org",
];

/// What replaces a word of a value that could be personal.
const TAKEN_OUT: &str = "taken-out";

/// Personal names that were found, each with a number, and values that were changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    folders: RefCell<Vec<String>>,
    values: RefCell<Vec<(String, String)>>,
}

fn is_in(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|it| it.eq_ignore_ascii_case(word))
}

fn is_known_name(name: &str) -> bool {
    let mut pieces = name.split(['.', '_', '-', '+', '~']);
    let is_known = |piece: &str| {
        // Versions end with a commit's hash.
        let is_commit = piece.len() <= 16
            && piece.bytes().all(|byte| byte.is_ascii_hexdigit())
            && piece.bytes().any(|byte| byte.is_ascii_digit());
        let mut parts = piece.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty());
        is_commit || parts.all(|part| is_in(PARTS, part))
    };
    pieces.all(is_known)
}

impl Words {
    /// The name of a folder or a file as others may see it. Its beginning and ending tell the system its type, and
    /// stay.
    fn component(&self, name: &str) -> String {
        if name.is_empty() || is_known_name(name) {
            return name.to_owned();
        }
        let mut folders = self.folders.borrow_mut();
        let number = folders.iter().position(|it| it == name).unwrap_or_else(|| {
            folders.push(name.to_owned());
            folders.len() - 1
        });
        let dot = if name.starts_with('.') { "." } else { "" };
        let endings =
            [".service.d", ".service", ".conf", ".rules", ".fish", ".sh", ".txt", ".so", ".json", ".py", ".pth", ".d"];
        let ending = endings.into_iter().find(|ending| name.ends_with(ending)).unwrap_or_default();
        format!("{dot}folder{}{ending}", number + 1)
    }

    /// A path as others may see it. The kernel's names, and those below AMD's and torch's own folders, are the same everywhere.
    pub(super) fn path(&self, path: &str) -> String {
        if ["/sys/", "/proc/", "/dev/"].iter().any(|start| path.starts_with(start)) {
            return path.to_owned();
        }
        let mut is_vendors = ["/usr/lib/", "/usr/lib64/", "/usr/share/", "/lib/", "/lib64/"]
            .iter()
            .any(|start| path.starts_with(start) && !path.contains("-packages/"));
        let mut before = "";
        let mut parts = Vec::new();
        for part in path.split('/') {
            parts.push(if is_vendors { part.to_owned() } else { self.component(part) });
            let is_package = before == "site-packages" || before == "dist-packages";
            is_vendors |= (is_package && (is_known_name(part) || part.starts_with("torch")))
                || (before == "opt" && part.starts_with("rocm") && is_known_name(part));
            before = part;
        }
        parts.join("/")
    }

    /// A text with the paths and addresses of web pages in it as others may see them.
    pub(super) fn text(&self, text: &str) -> String {
        // First, while they are as they were read: their replacements have no path that would be changed again.
        let values = self.values.borrow();
        let text = values.iter().fold(text.to_owned(), |text, (value, instead)| text.replace(value, instead));
        let mut result = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(at) = rest.find('/') {
            let (before, path) = rest.split_at(at);
            result.push_str(before);
            let ends = |c: char| c.is_whitespace() || "\"'`,;:()<>|\\*=[]{}".contains(c);
            let length = path.find(ends).unwrap_or(path.len());
            let (path, after) = path.split_at(length);
            let last = result.chars().next_back();
            if result.ends_with("http:") || result.ends_with("https:") {
                let host = path.trim_start_matches('/').split('/').next().unwrap_or_default();
                result.push_str(if HOSTS.contains(&host) { path } else { "//host" });
            } else if last.is_some_and(|c| c.is_alphanumeric() || ".-_…×".contains(c)) && last != Some('~') {
                // Not the beginning of a path: and/or, docs/page.md, a ratio.
                result.push_str(path);
            } else {
                result.push_str(&self.path(path));
            }
            rest = after;
        }
        result.push_str(rest);
        result
    }

    /// A variable's value as others may see it: numbers, versions, words that the variable is described with, and paths.
    pub(super) fn value(&self, name: &str, value: &str) -> String {
        let described = match variables::classify(name) {
            Known::Described(variable) => format!("{} {}", variable.values, variable.default),
            Known::Exists | Known::Imaginary { truth: Some(_), .. } => String::new(),
            Known::Imaginary { truth: None, .. } | Known::Foreign => return TAKEN_OUT.to_owned(),
        };
        let value = value.replace(['\n', '\r'], " ");
        let separators = [' ', ',', ';', ':', '=', '|', '@', '"', '\''];
        let mut result = String::new();
        let mut rest = value.as_str();
        while !rest.is_empty() {
            let length = rest.find(separators).unwrap_or(rest.len());
            let (word, after) = rest.split_at(length);
            if !word.is_empty() {
                result.push_str(&if word.starts_with('/') || word.starts_with("~/") {
                    self.path(word)
                } else if is_allowed(word, &described) {
                    word.to_owned()
                } else {
                    TAKEN_OUT.to_owned()
                });
            }
            let other = after.chars().next().map_or(0, char::len_utf8);
            result.push_str(&after[..other]);
            rest = &after[other..];
        }
        if result != value && value.len() > 3 {
            let mut values = self.values.borrow_mut();
            values.push((value.clone(), result.clone()));
            // The longest first: one may be a part of another.
            values.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        }
        result
    }

    /// A list of folders, such as PATH has.
    pub(super) fn folders(&self, value: &str) -> String {
        let entry = |entry: &str| if entry.starts_with('/') { self.path(entry) } else { self.component(entry) };
        value.replace(['\n', '\r'], " ").split(':').map(entry).collect::<Vec<_>>().join(":")
    }
}

fn is_allowed(word: &str, described: &str) -> bool {
    let is_number = || {
        let digits =
            word.trim_start_matches(['-', '+']).trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%');
        let unit = word.len() - word.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%').len();
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit() || ".-".contains(c)) && unit <= 2
    };
    let is_chip =
        || word.strip_prefix("gfx").is_some_and(|rest| rest.len() <= 5 && rest.chars().all(|c| c.is_ascii_hexdigit()));
    let is_described = || {
        let mut words = described.split(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c)));
        words.any(|it| !it.is_empty() && it.eq_ignore_ascii_case(word))
    };
    let is_feature =
        || word.strip_prefix(['+', '-']).is_some_and(|name| name.split('-').all(|part| is_in(FEATURE_PARTS, part)));
    // MIOpen's solvers, by the names in its own lists.
    let is_solver = || word.strip_prefix("Conv").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_alphanumeric()));
    let is_library = || word.strip_prefix("libunhang_").is_some_and(|rest| rest.ends_with(".so"));
    is_number()
        || is_chip()
        || is_in(WORDS, word)
        || is_described()
        || OPTIONS.contains(&word)
        || is_feature()
        || is_solver()
        || is_library()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_somebodys_own_become_numbers_and_the_rest_stays() {
        let words = Words::default();
        let venv = "/data/people/anna/venv/lib/python3.11/site-packages/torch/lib/libMIOpen.so.1";
        assert_eq!(
            words.path(venv),
            "/data/folder1/folder2/venv/lib/python3.11/site-packages/torch/lib/libMIOpen.so.1"
        );
        assert_eq!(words.path("/net/fileserver01/anna"), "/net/folder3/folder2", "the same name, the same number");
        assert_eq!(words.path("/etc/profile.d/acme.sh"), "/etc/profile.d/folder4.sh");
        for path in [
            "/opt/rocm-5.7.0/lib/libhsa-runtime64.so",
            "/sys/class/kfd/kfd/topology",
            "/home/user/.config/miopen/gfx1030_18.HIP.2_20_0_aae2f0b6b.ufdb.txt",
            "/usr/bin",
            "/home/user/lib/python3.12/site-packages/jax_rocm7_plugin-0.10.2.dist-info/METADATA",
            "/home/user/lib/python3.11/site-packages/tensorflow_rocm-2.13.1.600.dist-info/METADATA",
            "/home/user/lib/python3.12/site-packages/triton-3.6.0.dist-info/METADATA",
        ] {
            assert_eq!(words.path(path), path);
        }
        let text = "see https://github.com/x and http://git.acme.example/x, /srv/anna/db or a/b, 1/2";
        assert_eq!(words.text(text), "see https://github.com/x and http://host, /srv/folder2/db or a/b, 1/2");
    }

    #[test]
    fn values_say_what_the_variable_is_described_with() {
        let words = Words::default();
        for (name, value, expected) in [
            ("HSA_OVERRIDE_GFX_VERSION", "10.3.0", "10.3.0"),
            ("MIOPEN_FIND_MODE", "NORMAL", "NORMAL"),
            ("MIOPEN_FIND_MODE", "hunter2", "taken-out"),
            ("PYTORCH_ROCM_ARCH", "gfx1030;gfx1010", "gfx1030;gfx1010"),
            ("MIOPEN_USER_DB_PATH", "/net/fileserver01/db", "/net/folder1/db"),
            ("MIOPEN_USER_DB_PATH", "fileserver01:/export/db", "taken-out:/folder2/db"),
            ("MIOPEN_USER_DB_PATH", "anna@example.com", "taken-out@taken-out"),
            ("HIPRTC_COMPILE_OPTIONS_APPEND", "-O3 -DAPI_KEY=hunter2", "-O3 taken-out=taken-out"),
            (
                "HIPRTC_COMPILE_OPTIONS_APPEND",
                "-Xclang -target-feature -Xclang +vcmpx-permlane-hazard",
                "-Xclang -target-feature -Xclang +vcmpx-permlane-hazard",
            ),
            ("HSA_ANNAS_TOKEN", "hunter2", "taken-out"),
        ] {
            assert_eq!(words.value(name, value), expected, "{name}={value}");
        }
        assert_eq!(words.text("it is -O3 -DAPI_KEY=hunter2 now"), "it is -O3 taken-out=taken-out now");
    }
}

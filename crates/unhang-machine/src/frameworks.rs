//! Frameworks other than torch that compute on AMD's GPUs: JAX and TensorFlow, by the names of their packages.
//!
//! Their wheels name the chips that they agree to run on, and none names an RDNA1 chip.

use std::path::PathBuf;

use serde::Serialize;

use crate::system::System;

/// A framework's part for ROCm, as pip installed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Framework {
    /// `JAX` or `TensorFlow`.
    pub name: &'static str,
    /// Its package, for example `jax-rocm7-plugin`.
    pub package: String,
    /// For example `0.10.2`.
    pub version: String,
    /// The version of the Python that it belongs to, for example `3.12`.
    pub python: Option<String>,
    /// The folder with packages.
    pub path: String,
    /// Whether the same Python imports unhang.
    pub unhang: bool,
    /// The script that enters its environment, if that has one and is not active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activate: Option<String>,
}

impl Framework {
    /// Whether it runs on a card that passes as gfx1030. tensorflow-rocm 2.14.0.600 has a comma missing in its list
    /// ("gfx1030gfx1100") and refuses that chip too.
    pub fn runs_spoofed(&self) -> bool {
        !(self.name == "TensorFlow" && self.version.starts_with("2.14.0."))
    }
}

/// The framework of a package's record, such as `jax_rocm7_plugin-0.10.2.dist-info`: name, package and version.
fn parse(record: &str) -> Option<(&'static str, String, String)> {
    let (package, version) = record.strip_suffix(".dist-info")?.split_once('-')?;
    let name = match package {
        "tensorflow_rocm" => "TensorFlow",
        _ if package.starts_with("jax_rocm") && package.ends_with("_plugin") => "JAX",
        _ => return None,
    };
    Some((name, package.replace('_', "-"), version.chars().take(40).collect()))
}

/// The frameworks in these folders of packages, each with its Python's version.
pub(crate) fn find(system: &System, folders: &[(Option<String>, PathBuf)]) -> Vec<Framework> {
    let mut found: Vec<Framework> = Vec::new();
    for (python, packages) in folders {
        let path = packages.display().to_string();
        for record in system.entries(packages) {
            let Some((name, package, version)) = parse(&record) else { continue };
            if found.iter().any(|it| it.path == path && it.package == package) || found.len() >= 32 {
                continue;
            }
            // Only its existence matters; a bundle gets an empty one.
            system.record(&packages.join(&record).join("METADATA"), Vec::new());
            let (python, path) = (python.clone(), path.clone());
            found.push(Framework { name, package, version, python, path, unhang: false, activate: None });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_known_by_their_records() {
        let jax = parse("jax_rocm7_plugin-0.10.2.dist-info").unwrap();
        assert_eq!(jax, ("JAX", "jax-rocm7-plugin".to_owned(), "0.10.2".to_owned()));
        assert_eq!(parse("jax_rocm60_plugin-0.5.0.dist-info").unwrap().0, "JAX");
        let tensorflow = parse("tensorflow_rocm-2.13.1.600.dist-info").unwrap();
        assert_eq!(tensorflow, ("TensorFlow", "tensorflow-rocm".to_owned(), "2.13.1.600".to_owned()));
        for other in [
            "jax-0.10.2.dist-info",
            "jax_cuda12_plugin-0.5.0.dist-info",
            "tensorflow-2.15.0.dist-info",
            "jax_rocm7_plugin",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}

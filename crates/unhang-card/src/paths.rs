//! Which paths are the card's, and what they map to.
//!
//! Paths of the driver lead into the machine folder; everything else is left alone. No path that is not ours costs an
//! allocation: the functions are called from memory allocators too.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a path is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PathPlace {
    /// None of ours.
    Elsewhere,
    /// `/dev/kfd`.
    Kfd,
    /// `/dev/dri/renderD…`.
    Render(u32),
    /// A file or folder in the machine folder.
    Inside(CString),
}

/// Folders of the driver, and where a machine folder has them.
const FOLDERS: [(&[u8], &[u8]); 9] = [
    (b"/proc/modules", b"/proc/modules"),
    (b"/sys/devices/virtual/kfd", b"/sys/class/kfd"),
    (b"/sys/class/kfd", b"/sys/class/kfd"),
    (b"/sys/module/amdgpu", b"/sys/module/amdgpu"),
    (b"/sys/bus/pci/devices", b"/sys/bus/pci/devices"),
    (b"/sys/class/drm", b"/sys/class/drm"),
    (b"/sys/dev/char/226:", b"/sys/dev/char/226:"),
    (b"/dev/dri", b"/dev/dri"),
    (b"/dev/kfd", b"/dev/kfd"),
];

/// The rest of a path after a folder's name, if the path is that folder or below it.
fn below<'a>(path: &'a [u8], folder: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(folder)?;
    (rest.is_empty() || rest[0] == b'/' || folder.ends_with(b":")).then_some(rest)
}

/// What a path refers to on the machine in the folder `root`.
pub(crate) fn place(root: &Path, path: &CStr) -> PathPlace {
    let path = path.to_bytes();
    if ![&b"/sys/"[..], b"/dev/", b"/proc/m"].iter().any(|start| path.starts_with(start)) {
        return PathPlace::Elsewhere;
    }
    if path == b"/dev/kfd" {
        return PathPlace::Kfd;
    }
    if let Some(minor) = path.strip_prefix(b"/dev/dri/renderD") {
        return match std::str::from_utf8(minor).ok().and_then(|minor| minor.parse().ok()) {
            Some(minor) => PathPlace::Render(minor),
            None => PathPlace::Elsewhere,
        };
    }
    for (folder, inside) in FOLDERS {
        if let Some(rest) = below(path, folder) {
            let mut target = root.as_os_str().as_bytes().to_vec();
            target.extend_from_slice(inside);
            target.extend_from_slice(rest);
            return CString::new(target).map_or(PathPlace::Elsewhere, PathPlace::Inside);
        }
    }
    PathPlace::Elsewhere
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &CStr) -> PathPlace {
        place(Path::new("/m"), path)
    }

    #[test]
    fn the_drivers_paths_lead_into_the_folder_and_no_others() {
        assert_eq!(of(c"/dev/kfd"), PathPlace::Kfd);
        assert_eq!(of(c"/dev/dri/renderD129"), PathPlace::Render(129));
        assert_eq!(of(c"/dev/dri"), PathPlace::Inside(c"/m/dev/dri".into()));
        assert_eq!(
            of(c"/sys/devices/virtual/kfd/kfd/topology/nodes/1/gpu_id"),
            PathPlace::Inside(c"/m/sys/class/kfd/kfd/topology/nodes/1/gpu_id".into())
        );
        assert_eq!(of(c"/sys/dev/char/226:128/device"), PathPlace::Inside(c"/m/sys/dev/char/226:128/device".into()));
        for path in
            [c"/dev/kfdx", c"/sys/module/amdgpu2", c"/dev/null", c"dev/kfd", c"/etc/passwd", c"", c"/dev/dri/renderDx"]
        {
            assert_eq!(of(path), PathPlace::Elsewhere, "{path:?}");
        }
    }
}

//! Writes every gfx10 code object of a container into a folder: `extract FILE FOLDER`.

use std::path::Path;

use unhang_objects::{WalkEvent, walk};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, file, folder] = arguments.as_slice() else {
        eprintln!("usage: extract FILE FOLDER");
        std::process::exit(2);
    };
    let mut count = 0;
    let mut current = String::new();
    let result = walk(Path::new(file), &mut |event| match event {
        WalkEvent::File { path } => current = path.rsplit(['/', '!']).next().unwrap_or(path).to_owned(),
        WalkEvent::Object { target, bytes } => {
            let name = format!("{current}.{count}.{}.co", target.replace(':', "_"));
            if let Err(error) = std::fs::write(Path::new(folder).join(name), bytes) {
                eprintln!("cannot write: {error}");
            }
            count += 1;
        }
        WalkEvent::OtherTarget { .. } => {}
        WalkEvent::Unreadable { path, error } => eprintln!("{path}: {error}"),
    });
    if let Err(error) = result {
        eprintln!("{file}: {error}");
        std::process::exit(2);
    }
    println!("{count} code objects");
}

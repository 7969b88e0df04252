//! What the files of a crate need of each other, read from their text: `use` declarations, paths in code, and methods that a
//! type has in another file than its own. Tests are left out.
//!
//! A name counts for the file that defines it, whichever module hands it on with `pub use`. A name that a module imported for
//! itself counts for that module: a child that takes it from there needs its parent. `mod` and `pub use` of a child are no
//! need.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// A module that has a file, by its names from the crate's root.
type Module = Vec<String>;

/// The files of a crate.
pub(crate) struct Crate {
    files: BTreeMap<Module, File>,
}

struct File {
    path: PathBuf,
    words: Vec<String>,
    /// Names that `use` brings in, and where from. A glob has the name `*`.
    imports: Vec<Import>,
    /// Types that are defined here.
    types: HashSet<String>,
    /// Functions of `impl` blocks, with the type.
    methods: Vec<(String, String)>,
}

struct Import {
    name: String,
    path: Vec<String>,
    is_public: bool,
}

/// What a path leads to.
enum Target {
    Module(Module),
    Item(Module),
}

impl Crate {
    /// Reads the library or the program whose sources are in a folder.
    pub(crate) fn read(folder: &Path) -> Crate {
        let mut found = Crate { files: BTreeMap::new() };
        for name in ["lib.rs", "main.rs"] {
            if folder.join(name).exists() {
                found.add(folder.join(name), Vec::new(), folder.to_owned());
            }
        }
        found
    }

    /// Adds a file and the files of its modules, which are in `folder`.
    fn add(&mut self, path: PathBuf, module: Module, folder: PathBuf) {
        let words = from_the_file(without_tests(words(&fs::read_to_string(&path).unwrap())));
        let children: Vec<String> =
            words.windows(3).filter(|it| it[0] == "mod" && it[2] == ";").map(|it| it[1].clone()).collect();
        let file = File { path, imports: imports(&words), types: types(&words), methods: methods(&words), words };
        self.files.entry(module.clone()).or_insert(file);
        for child in children {
            let inside = folder.join(&child);
            let places = [folder.join(format!("{child}.rs")), inside.join("mod.rs")];
            if let Some(path) = places.into_iter().find(|path| path.exists()) {
                self.add(path, [module.clone(), vec![child]].concat(), inside);
            }
        }
    }

    /// Where a path leads that stands in a module, if that is a file of the crate. `depth` ends circles of imports.
    fn resolve(&self, from: &Module, path: &[String], depth: usize) -> Option<Target> {
        let mut at = from.clone();
        for (index, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => {
                    at.pop();
                }
                _ => {
                    let child = [at.clone(), vec![name.clone()]].concat();
                    if self.files.contains_key(&child) {
                        at = child;
                        continue;
                    }
                    let import = self.files[&at].imports.iter().find(|import| import.name == *name);
                    if let Some(import) = import.filter(|_| depth < 8) {
                        if at != *from && !import.is_public {
                            return Some(Target::Item(at));
                        }
                        let rest = [&import.path, &path[index + 1..]].concat();
                        return self.resolve(&at, &rest, depth + 1);
                    }
                    return (index > 0).then_some(Target::Item(at));
                }
            }
        }
        Some(Target::Module(at))
    }

    /// Who needs whom, with the names.
    fn arrows(&self) -> BTreeMap<&Module, BTreeMap<&Module, BTreeSet<String>>> {
        let mut arrows: BTreeMap<&Module, BTreeMap<&Module, BTreeSet<String>>> = BTreeMap::new();
        let foreign_methods = self.foreign_methods();
        for (from, file) in &self.files {
            let mut needs: Vec<(Module, String)> = Vec::new();
            for import in &file.imports {
                let hands_on = import.is_public
                    && !uses(&file.words, &import.name)
                    && matches!(self.resolve(from, &import.path, 0), Some(Target::Item(to)) if to.starts_with(from));
                match self.resolve(from, &import.path, 0) {
                    Some(Target::Item(to)) if !hands_on => needs.push((to, import.name.clone())),
                    Some(Target::Module(to)) if import.name == "*" && !import.is_public => needs.push((to, "*".into())),
                    _ => {}
                }
            }
            for path in paths(&file.words) {
                if let Some(Target::Item(to)) = self.resolve(from, &path, 0) {
                    needs.push((to, path.last().unwrap().clone()));
                }
            }
            for call in file.words.windows(4).filter(|it| it[1] == "." && it[3] == "(") {
                let Some((to, subject)) = foreign_methods.get(call[2].as_str()) else { continue };
                let is_own = call[0] == "self" && file.methods.iter().any(|(own, _)| own == subject);
                if is_own || call[0] == subject.to_lowercase() {
                    needs.push(((*to).clone(), format!(".{}()", call[2])));
                }
            }
            for (to, name) in needs {
                if let Some((to, _)) = self.files.get_key_value(&to).filter(|(to, _)| *to != from) {
                    arrows.entry(from).or_default().entry(to).or_default().insert(name);
                }
            }
        }
        arrows
    }

    /// Methods of a type that stand in another file than the type, with the type, where no other method has that name.
    fn foreign_methods(&self) -> HashMap<&str, (&Module, &str)> {
        let mut places: HashMap<&str, Vec<(&Module, &str)>> = HashMap::new();
        for (module, file) in &self.files {
            for (subject, method) in &file.methods {
                places.entry(method).or_default().push((module, subject));
            }
        }
        let is_of_the_crate = |subject: &str| self.files.values().any(|file| file.types.contains(subject));
        let only = places.into_iter().filter_map(|(method, places)| {
            let [(module, subject)] = places[..] else { return None };
            let stands_elsewhere = is_of_the_crate(subject) && !self.files[module].types.contains(subject);
            stands_elsewhere.then_some((method, (module, subject)))
        });
        only.collect()
    }

    /// The modules that one needs, and those that these need.
    pub(crate) fn reached_from(&self, module: &str) -> Vec<String> {
        let arrows = self.arrows();
        let module: Module = module.split("::").map(str::to_owned).collect();
        let (from, _) = self.files.get_key_value(&module).expect("a module of the crate");
        reach(&arrows, from).into_iter().map(|module| module.join("::")).collect()
    }

    /// Functions of product code that have more lines than that: file, name and lines.
    pub(crate) fn functions_longer_than(&self, most: usize) -> Vec<(String, String, usize)> {
        let mut found = Vec::new();
        for file in self.files.values() {
            let text = fs::read_to_string(&file.path).unwrap();
            let product = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
            let long = functions(product).into_iter().filter(|(_, lines)| *lines > most);
            found.extend(long.map(|(name, lines)| (file.path.file_stem_in_folder(), name, lines)));
        }
        found
    }

    /// Arguments that are tuples taken apart, by file and text: several arguments that pass for one.
    pub(crate) fn tuples_as_arguments(&self) -> Vec<String> {
        let mut found = Vec::new();
        for file in self.files.values() {
            let text = fs::read_to_string(&file.path).unwrap();
            let product = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
            for (at, _) in product.match_indices("): (") {
                let Some(begin) = product[..at].rfind('(') else { continue };
                let names = &product[begin + 1..at];
                let is_names =
                    names.contains(", ") && names.chars().all(|it| it.is_alphanumeric() || "_, ".contains(it));
                let before = product[..begin].trim_end();
                if is_names && (before.ends_with('(') || before.ends_with(',')) {
                    found.push(format!("{}: ({names})", file.path.file_stem_in_folder()));
                }
            }
        }
        found
    }

    /// The circles among files, as text: who is in one, and what ties it.
    pub(crate) fn circles(&self) -> Vec<String> {
        let arrows = self.arrows();
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.files.keys().map(|from| (from, reach(&arrows, from))).collect();
        let mut seen: BTreeSet<&Module> = BTreeSet::new();
        let mut circles = Vec::new();
        for from in self.files.keys() {
            if seen.contains(from) || !reached[from].contains(from) {
                continue;
            }
            let circle: BTreeSet<&Module> =
                reached[from].iter().copied().filter(|to| reached[to].contains(from)).collect();
            let mut text = format!("{} files", circle.len());
            for from in &circle {
                for (to, names) in arrows[from].iter().filter(|(to, _)| circle.contains(*to)) {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    let [from, to] = [from, to].map(|module| self.files[*module].path.file_stem_in_folder());
                    let _ = write!(text, "\n    {from} needs {to}: {}", names.join(", "));
                }
            }
            seen.extend(circle);
            circles.push(text);
        }
        circles
    }
}

/// Rust files below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path if path.extension().is_some_and(|it| it == "rs") => found.push(path),
            _ => {}
        }
    }
    found
}

/// The functions of a file as `rustfmt` lays them out, with their lines from the first word of the declaration to the closing
/// brace.
fn functions(text: &str) -> Vec<(String, usize)> {
    const BEFORE: [&str; 7] = ["pub", "pub(crate)", "pub(super)", "const", "unsafe", "extern", "async"];
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let declaration = line.trim_start();
        let mut words = declaration.split(' ').skip_while(|word| BEFORE.contains(word) || word.starts_with('"'));
        if words.next() != Some("fn") {
            continue;
        }
        let name: String =
            words.next().unwrap_or_default().chars().take_while(|it| it.is_alphanumeric() || *it == '_').collect();
        let opens = |line: &&str| line.ends_with(['{', ';', '}']);
        let Some(open) = lines[start..].iter().position(opens).map(|at| start + at) else { continue };
        if lines[open].ends_with('{') {
            let end = format!("{}}}", &line[..line.len() - declaration.len()]);
            let length = lines[start..].iter().position(|line| *line == end);
            found.extend(length.map(|length| (name, length + 1)));
        }
    }
    found
}

trait FileStemInFolder {
    /// The last folder and the name.
    fn file_stem_in_folder(&self) -> String;
}

impl FileStemInFolder for PathBuf {
    fn file_stem_in_folder(&self) -> String {
        let parts: Vec<&str> = self.iter().filter_map(|part| part.to_str()).collect();
        parts[parts.len() - 2..].join("/")
    }
}

fn reach<'a>(
    arrows: &BTreeMap<&'a Module, BTreeMap<&'a Module, BTreeSet<String>>>,
    from: &'a Module,
) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        for to in arrows.get(at).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(*to) {
                open.push(to);
            }
        }
    }
    reached
}

/// Identifiers and marks, without comments and the text of strings.
fn words(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let letters: Vec<char> = text.chars().collect();
    let mut at = 0;
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    while at < letters.len() {
        let rest = &letters[at..];
        let next = rest.get(1).copied().unwrap_or(' ');
        at += match rest[0] {
            '/' if next == '/' => rest.iter().position(|&it| it == '\n').unwrap_or(rest.len()),
            '/' if next == '*' => rest.windows(2).position(|it| it == ['*', '/']).map_or(rest.len(), |end| end + 2),
            'r' if next == '"' || next == '#' => raw_string(rest).unwrap_or_else(|| {
                let end = rest.iter().position(|&it| !is_name(it)).unwrap_or(rest.len());
                found.push(rest[..end].iter().collect());
                end
            }),
            '"' => string(rest),
            '\'' => {
                let end =
                    if next == '\\' { rest[3..].iter().position(|&it| it == '\'').map(|end| end + 3) } else { Some(2) };
                // Otherwise it is a lifetime.
                end.filter(|&end| rest.get(end) == Some(&'\'')).map_or(1, |end| end + 1)
            }
            letter if is_name(letter) => {
                let end = rest.iter().position(|&it| !is_name(it)).unwrap_or(rest.len());
                found.push(rest[..end].iter().collect());
                end
            }
            letter if letter.is_whitespace() => 1,
            ':' if next == ':' => {
                found.push("::".into());
                2
            }
            letter => {
                found.push(letter.into());
                1
            }
        };
    }
    found
}

/// How long a string is that begins here.
fn string(letters: &[char]) -> usize {
    let mut at = 1;
    while at < letters.len() && letters[at] != '"' {
        at += if letters[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// How long a raw string is that begins here.
fn raw_string(letters: &[char]) -> Option<usize> {
    let marks = letters[1..].iter().take_while(|&&it| it == '#').count();
    (letters.get(1 + marks) == Some(&'"')).then_some(())?;
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', marks)).collect();
    let start = marks + 2;
    letters[start..].windows(end.len()).position(|it| it == end).map(|at| start + at + end.len())
}

/// Leaves out what is compiled for tests only: the item behind `#[cfg(test)]`.
fn without_tests(words: Vec<String>) -> Vec<String> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < words.len() {
        if words[at..].iter().zip(MARK).filter(|(word, mark)| word == mark).count() == MARK.len() {
            at = end_of_item(&words, at + MARK.len());
        } else {
            kept.push(words[at].clone());
            at += 1;
        }
    }
    kept
}

/// Paths of modules without a file as they are from the file's own module: without the first `super`.
fn from_the_file(words: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    let mut inner: Option<usize> = None;
    let mut at = 0;
    while at < words.len() {
        // The name may be a parameter of a macro.
        let head = words[at..].iter().take(4).position(|word| word == "{");
        if words[at] == "mod" && head.is_some() && inner.is_none_or(|end| end <= at) {
            inner = Some(end_of_item(&words, at));
        }
        let is_inside = inner.is_some_and(|end| at < end);
        if is_inside && words[at] == "super" && kept.last().is_none_or(|word| word != "::") {
            at += 2;
            continue;
        }
        kept.push(words[at].clone());
        at += 1;
    }
    kept
}

/// Where the item ends that begins here: behind its `;` or its braces.
fn end_of_item(words: &[String], start: usize) -> usize {
    let mut depth = 0;
    for (at, word) in words.iter().enumerate().skip(start) {
        match word.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        let is_import = words[start] == "use" || words[start + 1] == "use";
        if depth == 0 && (word == ";" || word == "}" && !is_import) {
            return at + 1;
        }
    }
    words.len()
}

/// What the `use` declarations bring in.
fn imports(words: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    for start in (0..words.len()).filter(|&at| words[at] == "use") {
        let end = (start..words.len()).find(|&at| words[at] == ";").unwrap_or(words.len());
        let before = start.checked_sub(1).map_or("", |at| words[at].as_str());
        // `use<'a>` is a bound.
        if words[start + 1] == "<" {
            continue;
        }
        import_tree(&words[start + 1..end], &[], before == "pub" || before == ")", &mut found);
    }
    found
}

/// One tree of a `use` declaration, behind the path that leads to it.
fn import_tree(words: &[String], before: &[String], is_public: bool, found: &mut Vec<Import>) {
    let mut path = before.to_vec();
    let mut at = 0;
    while at < words.len() {
        match words[at].as_str() {
            "::" => {}
            "{" => {
                let mut depth = 0;
                let mut from = at + 1;
                for end in at..words.len() {
                    match words[end].as_str() {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        _ => {}
                    }
                    if depth == 0 || depth == 1 && words[end] == "," {
                        if from < end {
                            import_tree(&words[from..end], &path, is_public, found);
                        }
                        from = end + 1;
                    }
                }
                return;
            }
            "as" => {
                found.push(Import { name: words[at + 1].clone(), path, is_public });
                return;
            }
            "*" => {
                found.push(Import { name: "*".into(), path, is_public });
                return;
            }
            word => path.push(word.to_owned()),
        }
        at += 1;
    }
    if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
        path.pop();
    }
    if let Some(name) = path.last().cloned() {
        found.push(Import { name, path, is_public });
    }
}

/// Whether a name stands outside of `use` and `mod` declarations.
fn uses(words: &[String], name: &str) -> bool {
    let mut is_declared = false;
    let mut before = "";
    words.iter().any(|word| {
        is_declared = word == "use" || is_declared && word != ";";
        let is_module = std::mem::replace(&mut before, word) == "mod";
        !is_declared && !is_module && word == name
    })
}

/// Paths of two names and more, outside of `use` declarations.
fn paths(words: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < words.len() {
        if words[at] == "use" {
            at = (at..words.len()).find(|&end| words[end] == ";").unwrap_or(words.len());
        }
        let mut path: Vec<String> = Vec::new();
        let is_start = at == 0 || words[at - 1] != "::";
        while is_start && words.get(at + 1).is_some_and(|it| it == "::") && is_identifier(&words[at]) {
            path.push(words[at].clone());
            at += 2;
        }
        if !path.is_empty() && at < words.len() && is_identifier(&words[at]) {
            path.push(words[at].clone());
        }
        if path.len() > 1 {
            found.push(path);
        }
        at += 1;
    }
    found
}

fn is_identifier(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

/// The types that are defined in a file.
fn types(words: &[String]) -> HashSet<String> {
    let is_definition = |word: &str| ["struct", "enum", "union", "trait", "type"].contains(&word);
    words.windows(2).filter(|it| is_definition(&it[0])).map(|it| it[1].clone()).collect()
}

/// The functions of `impl` blocks without a trait, with the type.
fn methods(words: &[String]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for start in (0..words.len()).filter(|&at| words[at] == "impl") {
        let is_block = start == 0 || ["}", ";", "]", "unsafe"].contains(&words[start - 1].as_str());
        let Some(open) = (start..words.len()).find(|&at| words[at] == "{").filter(|_| is_block) else { continue };
        let head = &words[start + 1..open];
        if head.iter().any(|word| word == "for") {
            continue;
        }
        // Behind the parameters of the block.
        let mut depth = 0;
        let subject = head.iter().find(|word| {
            depth += i32::from(*word == "<") - i32::from(*word == ">");
            depth == 0 && is_identifier(word)
        });
        let end = end_of_item(words, start);
        let names = words[open..end].windows(2).filter(|it| it[0] == "fn").map(|it| it[1].clone());
        found.extend(names.map(|name| (subject.cloned().unwrap_or_default(), name)));
    }
    found
}

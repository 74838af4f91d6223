//! Checks the repository's rules against all files tracked by git and against cargo's dependency
//! graph.
//!
//! A rule is a pure function from text (or from the graph) to violations, in a submodule named
//! after its subject. Must not contain taste: a rule that needs judgement belongs in review.

mod banned_words;
mod crate_rules;
mod definitions;
mod functions;
mod guarantees;
mod lengths;
mod machine_specifics;
mod manifests;
mod mutation;
mod names;
mod package_graph;
mod participles;
mod purity;
mod run_library;
mod rust_source;
mod silent_tests;

use std::fmt;
use std::fs;
use std::path::Path;

use crate::shell::{self, TaskError, TaskResult};
use package_graph::PackageGraph;
use rust_source::RustSource;

/// One violated rule: where, and a sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TidyViolation {
    path: String,
    line: usize,
    sentence: String,
}

impl TidyViolation {
    fn new(path: &str, line: usize, sentence: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, sentence: sentence.into() }
    }
}

impl fmt::Display for TidyViolation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.sentence)
    }
}

/// A tracked text file.
struct TrackedFile {
    path: String,
    text: String,
}

/// Prints all violations in the repository; fails if there is one.
pub(crate) fn check_tidy() -> TaskResult {
    let files = read_tracked_files()?;
    let graph = PackageGraph::read()?;
    report_violations(find_violations(&files, &graph))
}

/// Prints the limited figures with their worst offenders.
pub(crate) fn report_figures() -> TaskResult {
    let files = read_tracked_files()?;
    println!("{}", names::report(&files, &sources(&files)));
    Ok(())
}

/// Lowers the limits to the current figures.
pub(crate) fn tighten_limits() -> TaskResult {
    let files = read_tracked_files()?;
    names::tighten(&files, &sources(&files))
}

/// All tests that are named after a guarantee, for the contract that the program prints.
pub(crate) fn list_guarantee_tests() -> Result<Vec<(u32, String, String)>, TaskError> {
    let files = read_tracked_files()?;
    let sources = sources(&files);
    Ok(guarantees::list_named_tests(&sources))
}

fn report_violations(mut violations: Vec<TidyViolation>) -> TaskResult {
    violations.sort();
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        count => Err(TaskError::new(format!("violations: {count}, listed above"))),
    }
}

fn find_violations(files: &[TrackedFile], graph: &PackageGraph) -> Vec<TidyViolation> {
    let sources = sources(files);
    [
        crate_rules::violations(graph, files),
        manifests::violations(graph, files),
        guarantees::violations(files, &sources),
        lengths::violations(&sources),
        names::violations(files, &sources),
        files.iter().flat_map(machine_specifics::violations).collect(),
        sources.iter().flat_map(source_violations).collect(),
    ]
    .concat()
}

fn source_violations(source: &RustSource) -> Vec<TidyViolation> {
    [
        banned_words::violations(source),
        purity::violations(source),
        run_library::violations(source),
        mutation::violations(source),
        silent_tests::violations(source),
    ]
    .concat()
}

fn sources(files: &[TrackedFile]) -> Vec<RustSource> {
    files.iter().filter(|file| is_rust(&file.path)).map(RustSource::new).collect()
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "rs")
}

fn find_file<'a>(files: &'a [TrackedFile], path: &str) -> Option<&'a TrackedFile> {
    files.iter().find(|file| file.path == path)
}

/// All tracked text files; a file with a zero byte is data and has no lines to point at.
fn read_tracked_files() -> Result<Vec<TrackedFile>, TaskError> {
    let mut files = Vec::new();
    for path in tracked_paths()? {
        let bytes = read_bytes(&path)?;
        if !bytes.contains(&0) {
            files.push(TrackedFile { path, text: String::from_utf8_lossy(&bytes).into_owned() });
        }
    }
    Ok(files)
}

/// `safe.directory`: in a container the clone often belongs to another user, and git would refuse to list it.
fn tracked_paths() -> Result<Vec<String>, TaskError> {
    let arguments = ["-c", "safe.directory=*", "ls-files", "-z"];
    let listed = shell::capture_stdout(&mut shell::new_command("git", &arguments))?;
    let paths = listed.split('\0').filter(|path| Path::new(path).is_file());
    Ok(paths.map(str::to_owned).collect())
}

fn read_bytes(path: &str) -> Result<Vec<u8>, TaskError> {
    fs::read(path).map_err(|error| TaskError::new(format!("cannot read `{path}`: {error}")))
}

/// Helpers of the rules' unit tests: a file and a source from a text, and the lines of violations.
#[cfg(test)]
mod sample {
    use super::*;

    pub(super) fn file(path: &str, text: &str) -> TrackedFile {
        TrackedFile { path: path.to_owned(), text: text.to_owned() }
    }

    pub(super) fn source(path: &str, text: &str) -> RustSource {
        RustSource::new(&file(path, text))
    }

    pub(super) fn lines(violations: &[TidyViolation]) -> Vec<usize> {
        violations.iter().map(|violation| violation.line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_violation_fails_the_task() {
        let failure = report_violations(vec![TidyViolation::new("a.rs", 3, "is wrong")]).unwrap_err();
        assert_eq!(failure.to_string(), "violations: 1, listed above");
        assert_eq!(report_violations(Vec::new()), Ok(()));
    }

    #[test]
    fn a_violation_reads_as_path_line_sentence() {
        assert_eq!(TidyViolation::new("a/b.rs", 3, "is wrong.").to_string(), "a/b.rs:3: is wrong.");
    }
}

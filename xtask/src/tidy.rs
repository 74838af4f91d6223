//! The rules of the house, proved over what is tracked by git and over cargo's own view of the
//! dependencies.
//!
//! A rule is a pure function from text (or from the graph) to violations and lives in a submodule
//! named after what it looks at. What never enters here: taste. A rule that needs judgement belongs
//! in review, not in this walk.

mod arrows;
mod definitions;
mod functions;
mod graph;
mod guarantees;
mod lengths;
mod manifests;
mod mutation;
mod names;
mod participles;
mod purity;
mod run_library;
mod rust;
mod silent_tests;
mod strangers;
mod words;

use std::fmt;
use std::fs;
use std::path::Path;

use crate::shell::{self, Failure, Outcome};
use graph::Graph;
use rust::Source;

/// One broken rule: where, and a sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    sentence: String,
}

impl Violation {
    fn new(path: &str, line: usize, sentence: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, sentence: sentence.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.sentence)
    }
}

/// A tracked text file.
struct File {
    path: String,
    text: String,
}

/// Print every violation in the repository; fail if there is one.
pub(crate) fn check() -> Outcome {
    let files = tracked()?;
    let graph = Graph::read()?;
    report(violations(&files, &graph))
}

/// Print the figures that have a limit, with their worst offenders.
pub(crate) fn report_figures() -> Outcome {
    let files = tracked()?;
    println!("{}", names::report(&files, &sources(&files)));
    Ok(())
}

/// Write today's figures where they are lower than their limits.
pub(crate) fn tighten_limits() -> Outcome {
    let files = tracked()?;
    names::tighten(&files, &sources(&files))
}

/// Every test that is named after a guarantee, for the contract that the program prints.
pub(crate) fn tests_of_guarantees() -> Result<Vec<(u32, String, String)>, Failure> {
    let files = tracked()?;
    let sources = sources(&files);
    Ok(guarantees::named_tests(&sources))
}

fn report(mut violations: Vec<Violation>) -> Outcome {
    violations.sort();
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("violations, listed above: {count}"))),
    }
}

fn violations(files: &[File], graph: &Graph) -> Vec<Violation> {
    let sources = sources(files);
    [
        arrows::violations(graph, files),
        manifests::violations(graph, files),
        guarantees::violations(files, &sources),
        lengths::violations(&sources),
        names::violations(files, &sources),
        files.iter().flat_map(strangers::violations).collect(),
        sources.iter().flat_map(of_source).collect(),
    ]
    .concat()
}

fn of_source(source: &Source) -> Vec<Violation> {
    [
        words::violations(source),
        purity::violations(source),
        run_library::violations(source),
        mutation::violations(source),
        silent_tests::violations(source),
    ]
    .concat()
}

fn sources(files: &[File]) -> Vec<Source> {
    files.iter().filter(|file| is_rust(&file.path)).map(Source::new).collect()
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "rs")
}

fn find<'a>(files: &'a [File], path: &str) -> Option<&'a File> {
    files.iter().find(|file| file.path == path)
}

/// Every tracked file that holds text; a file with a zero byte is data and has no lines to point
/// at.
fn tracked() -> Result<Vec<File>, Failure> {
    let mut files = Vec::new();
    for path in tracked_paths()? {
        let bytes = read(&path)?;
        if !bytes.contains(&0) {
            files.push(File { path, text: String::from_utf8_lossy(&bytes).into_owned() });
        }
    }
    Ok(files)
}

/// `safe.directory`: in a container the clone often belongs to another user, and git would refuse
/// to list it.
fn tracked_paths() -> Result<Vec<String>, Failure> {
    let arguments = ["-c", "safe.directory=*", "ls-files", "-z"];
    let listed = shell::capture(&mut shell::command("git", &arguments))?;
    let paths = listed.split('\0').filter(|path| Path::new(path).is_file());
    Ok(paths.map(str::to_owned).collect())
}

fn read(path: &str) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::new(format!("cannot read `{path}`: {error}")))
}

/// What the unit tests of the rules share: a file and a source from a text, and violations as the
/// lines they print.
#[cfg(test)]
mod sample {
    use super::*;

    pub(super) fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    pub(super) fn source(path: &str, text: &str) -> Source {
        Source::new(&file(path, text))
    }

    pub(super) fn lines(violations: &[Violation]) -> Vec<usize> {
        violations.iter().map(|violation| violation.line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_violation_fails_the_task() {
        let failure = report(vec![Violation::new("a.rs", 3, "is wrong")]).unwrap_err();
        assert_eq!(failure.to_string(), "violations, listed above: 1");
        assert_eq!(report(Vec::new()), Ok(()));
    }

    #[test]
    fn a_violation_reads_as_path_line_sentence() {
        assert_eq!(Violation::new("a/b.rs", 3, "is wrong.").to_string(), "a/b.rs:3: is wrong.");
    }
}

//! One line of `commands`: a command or another event.

use converger_lab::{RequestRecord, WorldEvent};

/// A parsed line.
#[derive(Clone, Debug)]
pub(crate) enum ScenarioLine {
    /// An event in the world.
    Act(Box<WorldEvent>),
    /// Milliseconds pass in the world.
    Wait(u64),
    /// A file of the scenario replaces another one.
    Copy(String, String),
    Move(String, String),
    /// Overwrites bytes of a file.
    Poke {
        file: String,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Creates a link.
    Link(String, String),
    /// Creates a directory with this mode.
    Directory(String, u32),
    /// Shows the true state of a guest.
    Look(u32),
    /// Shows a file.
    Show(String),
    /// Sends this signal to the next command.
    Signal(ScenarioSignal),
    /// Runs while the next command runs, after a matching request was carried out and before its response is sent.
    When(Box<LineTrigger>),
    /// Runs the program at a terminal, where these lines are typed.
    Terminal(Vec<String>, Vec<String>),
    /// Moves the state directory to a disk of this many KiB.
    Disk(u32),
    /// Fills that disk, except for this many KiB.
    Fill(usize),
    /// Frees that disk.
    Empty,
    /// Makes the disk read-only or writable.
    ReadOnly,
    Writable,
    /// Shifts the program's clock by this many seconds.
    Clock(i64),
    /// Runs the program with a limit on file sizes, in KiB.
    Limit(u32, Vec<String>),
    /// Runs the program.
    Run(Vec<String>),
}

/// A signal to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScenarioSignal {
    Kill,
    Interrupt,
    Terminate,
    HangUp,
}

/// A line that runs with a request.
#[derive(Clone, Debug)]
pub(crate) struct LineTrigger {
    /// `*` is any method.
    method: String,
    /// `*` matches anything.
    path: String,
    /// The number of matching requests to skip first.
    skip: usize,
    pub(crate) line: ScenarioLine,
}

impl LineTrigger {
    /// Whether the line runs with this request; counts skipped ones.
    pub(crate) fn fires(&mut self, record: &RequestRecord) -> bool {
        let path = record.path.split('?').next().unwrap_or_default();
        let fits = matches_pattern(&self.method, &record.method) && matches_pattern(&self.path, path);
        let comes = fits && self.skip == 0;
        self.skip -= usize::from(fits && !comes);
        comes
    }
}

fn matches_pattern(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(head) else { return false };
    (0..=text.len()).any(|at| text.get(at..).is_some_and(|tail| matches_pattern(rest, tail)))
}

impl ScenarioLine {
    /// Parses a line; an unknown one is an error of the scenario.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("commands: `{line}`: {error}");
        let split_words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
        let pair = |text: &str| text.split_once(' ').map(|(one, two)| (one.to_owned(), two.to_owned()));
        let two = |text: &str| pair(text).ok_or_else(|| wrong(&"two words are needed"));
        let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
        match keyword {
            "act" => Ok(Self::Act(serde_json::from_str(rest).map_err(|error| wrong(&error))?)),
            "wait" => Ok(Self::Wait(rest.parse().map_err(|error| wrong(&error))?)),
            "copy" => two(rest).map(|(from, to)| Self::Copy(from, to)),
            "move" => two(rest).map(|(from, to)| Self::Move(from, to)),
            "link" => two(rest).map(|(to, name)| Self::Link(to, name)),
            "directory" => {
                let (name, mode) = two(rest)?;
                Ok(Self::Directory(name, u32::from_str_radix(&mode, 8).map_err(|error| wrong(&error))?))
            }
            "poke" => match split_words(rest).as_slice() {
                [file, offset, bytes] => {
                    let offset = offset.parse().map_err(|error| wrong(&error))?;
                    let bytes = parse_hex(bytes).ok_or_else(|| wrong(&"bytes are pairs of digits"))?;
                    Ok(Self::Poke { file: file.clone(), offset, bytes })
                }
                _ => Err(wrong(&"which file, from which byte on, which bytes?")),
            },
            "disk" => Ok(Self::Disk(rest.parse().map_err(|error| wrong(&error))?)),
            "fill" => Ok(Self::Fill(if rest.is_empty() { 0 } else { rest.parse().map_err(|error| wrong(&error))? })),
            "empty" => Ok(Self::Empty),
            "read-only" => Ok(Self::ReadOnly),
            "writable" => Ok(Self::Writable),
            "clock" => Ok(Self::Clock(rest.parse().map_err(|error| wrong(&error))?)),
            "look" => Ok(Self::Look(rest.parse().map_err(|error| wrong(&error))?)),
            "show" => Ok(Self::Show(rest.to_owned())),
            "kill" => Ok(Self::Signal(ScenarioSignal::Kill)),
            "interrupt" => Ok(Self::Signal(ScenarioSignal::Interrupt)),
            "terminate" => Ok(Self::Signal(ScenarioSignal::Terminate)),
            "hang-up" => Ok(Self::Signal(ScenarioSignal::HangUp)),
            "when" => {
                let (method, rest) = two(rest)?;
                let (path, line) = two(&rest)?;
                let (path, nth) = path.split_once('#').map_or((path.as_str(), "1"), |(path, nth)| (path, nth));
                let nth: usize = nth.parse().map_err(|error| wrong(&error))?;
                let when = LineTrigger { method, path: path.to_owned(), skip: nth.saturating_sub(1), line: Self::parse(&line)? };
                Ok(Self::When(Box::new(when)))
            }
            "terminal" => {
                let (typed, arguments) = two(rest)?;
                let typed = typed.split(',').filter(|line| *line != "-").map(str::to_owned).collect();
                Ok(Self::Terminal(typed, split_words(&arguments)))
            }
            "limit" => {
                let (kibibytes, arguments) = two(rest)?;
                Ok(Self::Limit(kibibytes.parse().map_err(|error| wrong(&error))?, split_words(&arguments)))
            }
            _ => Ok(Self::Run(split_words(line))),
        }
    }
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_an_unknown_line() {
        let lines = ["act {\"explode\": 1}", "wait long", "copy one", "poke file 0 xyz", "look all", "when GET kill", "limit much audit"];
        let lines = lines.into_iter().chain(["disk", "fill all", "clock back"]);
        for line in lines {
            assert!(ScenarioLine::parse(line).is_err(), "{line}");
        }
        assert!(matches!(ScenarioLine::parse("act {\"stop\": 100}"), Ok(ScenarioLine::Act(_))));
        assert!(matches!(ScenarioLine::parse("poke a 60 00ff"), Ok(ScenarioLine::Poke { offset: 60, bytes, .. }) if bytes == [0, 255]));
    }

    #[test]
    fn trigger_fires_once_on_the_matching_request() {
        let Ok(ScenarioLine::When(mut when)) = ScenarioLine::parse("when PUT */config#2 kill") else { panic!("it is one") };
        let record = |method: &str, path: &str| RequestRecord {
            at_ms: 0,
            entry: String::new(),
            method: method.into(),
            path: path.into(),
            user: String::new(),
            status: 200,
        };
        assert!(!when.fires(&record("PUT", "/nodes/a/qemu/1/config?x=1")));
        assert!(!when.fires(&record("GET", "/nodes/a/qemu/1/config")));
        assert!(!when.fires(&record("PUT", "/nodes/a/qemu/1/configs")));
        assert!(when.fires(&record("PUT", "/nodes/a/qemu/1/config")));
        assert!(matches!(when.line, ScenarioLine::Signal(ScenarioSignal::Kill)));
    }
}

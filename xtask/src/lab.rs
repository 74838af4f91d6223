//! `converger lab` as a child of ours: started, asked what it saw, ended with whoever started it.
//!
//! What never enters here: who asks the lab, and what the answers should be.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::shell::{Failure, Outcome};

/// What the lab says last before it answers.
const READY: &str = "Ctrl-C ends it.";
const RECORD: &str = "requests.jsonl";
/// What a lab leaves.
const LEFT: [&str; 5] = ["converger.toml", "secret", "ca.pem", "lab.json", "lab.pem"];

/// How time passes in a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// By a second with each request, so that nobody waits.
    Asked,
    /// So many times as fast as on this machine.
    Real(&'static str),
}

impl Time {
    fn arguments(self) -> [&'static str; 2] {
        match self {
            Self::Asked => ["--clock", "1000"],
            Self::Real(speed) => ["--speed", speed],
        }
    }
}

/// A lab that answers. It ends when this is dropped.
pub(crate) struct Lab {
    child: Child,
    room: PathBuf,
}

impl Lab {
    /// Start `converger` (the command without arguments) with a world, and wait until it listens. What leads to the lab is left in
    /// `room`.
    pub(crate) fn start(mut converger: Command, world: &[&str], room: &Path, time: Time) -> Result<Self, Failure> {
        let failed = |what: &str| Failure::new(format!("the lab in `{}` {what}", room.display()));
        fs::create_dir_all(room).map_err(|error| failed(&format!("has no directory: {error}")))?;
        for old in LEFT {
            // What a lab of another version left would be refused, as what somebody else wrote.
            let _ = fs::remove_file(room.join(old));
        }
        converger.arg("lab").args(world).args(time.arguments()).args(["--port", "0", "--quiet", "--into"]).arg(room);
        converger.arg("--record").arg(room.join(RECORD)).stdout(Stdio::piped());
        let mut child = converger.spawn().map_err(|error| failed(&format!("could not be started: {error}")))?;
        let said = child.stdout.take().map(BufReader::new);
        let mut lines = said.into_iter().flat_map(|said| said.lines().map_while(Result::ok));
        let ready = lines.any(|line| line == READY);
        let lab = Self { child, room: room.to_owned() };
        if ready { Ok(lab) } else { Err(failed("ended before it answered; what it said stands above")) }
    }

    pub(crate) fn room(&self) -> &Path {
        &self.room
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// The CPU time that it has used, as Linux counts it.
    pub(crate) fn cpu_ms(&self) -> Result<f64, Failure> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = fs::read_to_string(&path).map_err(|error| Failure::new(format!("cannot read `{path}`: {error}")))?;
        cpu_ms(&text).ok_or_else(|| Failure::new(format!("`{path}` does not say what was used: {text}")))
    }

    /// Every request so far, in order.
    pub(crate) fn requests(&self) -> Result<Vec<Value>, Failure> {
        let path = self.room.join(RECORD);
        let failed = |error: &dyn std::fmt::Display| Failure::new(format!("cannot read `{}`: {error}", path.display()));
        let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
        text.lines().map(|line| serde_json::from_str(line).map_err(|error| failed(&error))).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing left to do then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time stand in the 14th and 15th field, in hundredths of a second on every Linux. The second field is a name
/// in brackets and may hold anything.
fn cpu_ms(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11).map(|field| field.parse::<f64>().ok());
    Some((fields.next()?? + fields.next()??) * 10.0)
}

/// Answers that say that the lab, and not the caller, falls short: methods that it does not play, nodes and daemons that are gone.
pub(crate) fn all_understood(requests: &[Value]) -> Outcome {
    let short = requests.iter().filter(|request| request["status"].as_u64().is_none_or(|status| status == 0 || status > 500));
    let lines: Vec<String> = short.map(|request| format!("  {} {} {}", request["status"], request["method"], request["path"])).collect();
    if lines.is_empty() { Ok(()) } else { Err(Failure::new(format!("requests that the lab does not understand:\n{}", lines.join("\n")))) }
}

/// Answers that have another form than the official documentation of the API says, or that nobody looked at.
pub(crate) fn all_documented(requests: &[Value]) -> Outcome {
    let is_fine = |request: &Value| matches!(request["form"].as_str(), Some("documented" | "raw"));
    let lines: Vec<String> = requests
        .iter()
        .filter(|request| !is_fine(request))
        .map(|request| format!("  {} {}: {}", request["method"], request["path"], request["form"]))
        .collect();
    let documented = requests.iter().filter(|request| request["form"] == "documented").count();
    match lines.is_empty() {
        true if documented > 0 => Ok(()),
        true => Err(Failure::new("no answer of the lab was held against the documentation of the API")),
        false => Err(Failure::new(format!("answers that are not as documented:\n{}", lines.join("\n")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(status: u64) -> Value {
        json!({ "status": status, "method": "GET", "path": "/api2/json/nodes" })
    }

    #[test]
    fn cpu_time_is_read_whatever_the_program_is_called() {
        assert_eq!(cpu_ms("7 (a) b (c) S 1 1 1 0 -1 4194304 100 0 0 0 250 31 0 0 20 0 1 0\n"), Some(2_810.0));
        assert_eq!(cpu_ms("7 (a) S 1"), None);
    }

    #[test]
    fn refusals_are_answers_and_what_is_not_played_is_none() {
        assert_eq!(all_understood(&[200, 400, 401, 403, 500].map(request)), Ok(()));
        for status in [0, 501, 595, 596] {
            let failure = all_understood(&[request(200), request(status)]).unwrap_err();
            assert!(failure.to_string().contains(&format!("{status} \"GET\"")), "{failure}");
        }
        assert!(all_understood(&[json!({})]).is_err(), "a request without a status was not answered");
    }

    #[test]
    fn every_answer_has_the_documented_form_or_comes_from_no_method() {
        let of = |form: &str| json!({ "method": "GET", "path": "/x", "form": form });
        assert_eq!(all_documented(&[of("documented"), of("raw")]), Ok(()));
        for strange in [of("unchecked"), of("data: `status` is missing"), json!({})] {
            assert!(all_documented(&[of("documented"), strange.clone()]).is_err(), "{strange}");
        }
        assert!(all_documented(&[of("raw")]).is_err(), "nothing was checked");
    }
}

//! Runs `converger lab` as a child process: starts it, reads the requests that it received, and
//! stops it with its owner.
//!
//! Must not know who uses the lab or what the responses should be.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::shell::{TaskError, TaskResult};

/// The last line that the lab prints before it answers requests.
const READY_TEXT: &str = "Ctrl-C ends it.";
const REQUEST_LOG_FILE: &str = "requests.jsonl";
const CONNECTION_FILE: &str = "lab.json";
/// The token of the worlds that are read with `curl`.
const TOKEN_HEADER: &str = "Authorization: PVEAPIToken=root@pam!lab=lab";
/// The files that a lab writes.
const LAB_FILES: [&str; 5] = ["converger.toml", "secret", "ca.pem", CONNECTION_FILE, "lab.pem"];

/// How time passes in a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabTime {
    /// Each request advances time by one second, so that nobody waits.
    PerRequest,
    /// This many times as fast as the wall clock.
    Real(&'static str),
}

impl LabTime {
    fn arguments(self) -> [&'static str; 2] {
        match self {
            Self::PerRequest => ["--clock", "1000"],
            Self::Real(speed) => ["--speed", speed],
        }
    }
}

/// A running lab. Dropping it stops the lab.
pub(crate) struct LabChild {
    child: Child,
    directory: PathBuf,
}

impl LabChild {
    /// Starts `converger` (the command without arguments) with a world, and waits until it listens. It writes its connection files to
    /// `directory`.
    pub(crate) fn start(mut converger: Command, world: &[&str], directory: &Path, time: LabTime) -> Result<Self, TaskError> {
        let failed = |what: &str| TaskError::new(format!("the lab in `{}` {what}", directory.display()));
        fs::create_dir_all(directory).map_err(|error| failed(&format!("has no directory: {error}")))?;
        for old in LAB_FILES {
            // Files of another version of the lab would be refused as not its own.
            let _ = fs::remove_file(directory.join(old));
        }
        converger.arg("lab").args(world).args(time.arguments()).args(["--port", "0", "--quiet", "--into"]).arg(directory);
        converger.arg("--record").arg(directory.join(REQUEST_LOG_FILE)).stdout(Stdio::piped());
        let mut child = converger.spawn().map_err(|error| failed(&format!("cannot be started: {error}")))?;
        let reader = child.stdout.take().map(BufReader::new);
        let mut lines = reader.into_iter().flat_map(|reader| reader.lines().map_while(Result::ok));
        let ready = lines.any(|line| line == READY_TEXT);
        let lab = Self { child, directory: directory.to_owned() };
        if ready { Ok(lab) } else { Err(failed("ended before it was ready; see its output above")) }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// The CPU time that it has used, according to Linux.
    pub(crate) fn cpu_ms(&self) -> Result<f64, TaskError> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = fs::read_to_string(&path).map_err(|error| TaskError::new(format!("cannot read `{path}`: {error}")))?;
        parse_cpu_ms(&text).ok_or_else(|| TaskError::new(format!("`{path}` does not contain the CPU time: {text}")))
    }

    /// Reads these paths of its API, each as what `data` has.
    pub(crate) fn read(&self, paths: &[String]) -> Result<Vec<Value>, TaskError> {
        let path = self.directory.join(CONNECTION_FILE);
        let failed = |error: &dyn std::fmt::Display| TaskError::new(format!("cannot read from the lab in `{}`: {error}", path.display()));
        let text = fs::read(&path).map_err(|error| failed(&error))?;
        let port = &serde_json::from_slice::<Value>(&text).map_err(|error| failed(&error))?["nodes"][0]["port"];
        let urls = paths.iter().map(|path| format!("https://127.0.0.1:{port}/api2/json/{path}"));
        let output = Command::new("curl").args(["-s", "-S", "-f", "-k", "-H", TOKEN_HEADER]).args(urls).output();
        let output = output.map_err(|error| failed(&error))?;
        if !output.status.success() {
            return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
        }
        let responses = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
        responses.map(|response| Ok(response.map_err(|error| failed(&error))?["data"].take())).collect()
    }

    /// All requests so far, in order.
    pub(crate) fn requests(&self) -> Result<Vec<Value>, TaskError> {
        let path = self.directory.join(REQUEST_LOG_FILE);
        let failed = |error: &dyn std::fmt::Display| TaskError::new(format!("cannot read `{}`: {error}", path.display()));
        let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
        text.lines().map(|line| serde_json::from_str(line).map_err(|error| failed(&error))).collect()
    }
}

impl Drop for LabChild {
    fn drop(&mut self) {
        // It may have ended by itself; nothing is left to do then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time are the 14th and 15th field, in hundredths of a second on every Linux. The second field is a name in parentheses
/// and may contain anything.
fn parse_cpu_ms(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11).map(|field| field.parse::<f64>().ok());
    Some((fields.next()?? + fields.next()??) * 10.0)
}

/// Fails on responses that show a limitation of the lab and not an error of the client: methods that it does not implement, nodes and
/// daemons that are gone.
pub(crate) fn check_all_handled(requests: &[Value]) -> TaskResult {
    let short = requests.iter().filter(|request| request["status"].as_u64().is_none_or(|status| status == 0 || status > 500));
    let lines: Vec<String> = short.map(|request| format!("  {} {} {}", request["status"], request["method"], request["path"])).collect();
    if lines.is_empty() { Ok(()) } else { Err(TaskError::new(format!("requests that the lab cannot handle:\n{}", lines.join("\n")))) }
}

/// Fails on responses whose form differs from the official API documentation, or was not checked.
pub(crate) fn check_all_documented(requests: &[Value]) -> TaskResult {
    let is_fine = |request: &Value| matches!(request["form"].as_str(), Some("documented" | "raw"));
    let lines: Vec<String> = requests
        .iter()
        .filter(|request| !is_fine(request))
        .map(|request| format!("  {} {}: {}", request["method"], request["path"], request["form"]))
        .collect();
    let documented = requests.iter().filter(|request| request["form"] == "documented").count();
    match lines.is_empty() {
        true if documented > 0 => Ok(()),
        true => Err(TaskError::new("no response of the lab was checked against the API documentation")),
        false => Err(TaskError::new(format!("responses that are not as documented:\n{}", lines.join("\n")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn test_request(status: u64) -> Value {
        json!({ "status": status, "method": "GET", "path": "/api2/json/nodes" })
    }

    #[test]
    fn cpu_time_is_parsed_for_any_program_name() {
        assert_eq!(parse_cpu_ms("7 (a) b (c) S 1 1 1 0 -1 4194304 100 0 0 0 250 31 0 0 20 0 1 0\n"), Some(2_810.0));
        assert_eq!(parse_cpu_ms("7 (a) S 1"), None);
    }

    #[test]
    fn refusals_are_handled_and_missing_methods_are_not() {
        assert_eq!(check_all_handled(&[200, 400, 401, 403, 500].map(test_request)), Ok(()));
        for status in [0, 501, 595, 596] {
            let failure = check_all_handled(&[test_request(200), test_request(status)]).unwrap_err();
            assert!(failure.to_string().contains(&format!("{status} \"GET\"")), "{failure}");
        }
        assert!(check_all_handled(&[json!({})]).is_err(), "a request without a status was not answered");
    }

    #[test]
    fn responses_are_documented_or_raw() {
        let of = |form: &str| json!({ "method": "GET", "path": "/x", "form": form });
        assert_eq!(check_all_documented(&[of("documented"), of("raw")]), Ok(()));
        for unexpected in [of("unchecked"), of("data: `status` is missing"), json!({})] {
            assert!(check_all_documented(&[of("documented"), unexpected.clone()]).is_err(), "{unexpected}");
        }
        assert!(check_all_documented(&[of("raw")]).is_err(), "nothing was checked");
    }
}

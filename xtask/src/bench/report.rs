//! The report: what was measured, which target it is held against, and whether that is met.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::shell::{Failure, Outcome};

/// What a value is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// One target. It is met where the value keeps its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) value: f64,
    pub(super) bound: Bound,
    /// What the value counts, read behind it.
    pub(super) unit: &'static str,
}

impl Target {
    /// Not `!(value > max)`: a value that is no number meets nothing.
    fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtMost(max) => self.value <= max,
            Bound::AtLeast(min) => self.value >= min,
        }
    }

    fn complaint(&self) -> String {
        let Self { name, value, bound, .. } = self;
        match bound {
            Bound::AtMost(max) => format!("`{name}` is {value:.2}, above {max}"),
            Bound::AtLeast(min) => format!("`{name}` is {value:.2}, below {min}"),
        }
    }
}

#[derive(Default)]
pub(super) struct Report {
    targets: Vec<Target>,
    remarks: Vec<String>,
    measurements: Map<String, Value>,
}

impl Report {
    pub(super) fn target(&mut self, target: Target) {
        self.targets.push(target);
    }

    /// What people are told and nobody is held to.
    pub(super) fn remark(&mut self, line: String) {
        self.remarks.push(line);
    }

    pub(super) fn measured(&mut self, name: &str, measurement: Value) {
        self.measurements.insert(name.to_owned(), measurement);
    }

    pub(super) fn json(&self) -> String {
        let targets: Vec<Value> = self.targets.iter().map(row).collect();
        let report = json!({ "schema": "converger.bench/1", "targets": targets, "measurements": self.measurements });
        format!("{report:#}\n")
    }

    pub(super) fn table(&self) -> String {
        let mut table = String::new();
        for target in &self.targets {
            let word = if target.is_met() { "met" } else { "MISSED" };
            // Writing to a string cannot fail.
            let (most, bound) = match target.bound {
                Bound::AtMost(max) => ("at most", max),
                Bound::AtLeast(min) => ("at least", min),
            };
            let _ = writeln!(table, "{:<17} {:>7.2}  {most:<8} {bound:>7.2}  {word:<6}  {}", target.name, target.value, target.unit);
        }
        for remark in &self.remarks {
            let _ = writeln!(table, "{remark}");
        }
        table
    }

    /// All targets that are missed, in one sentence.
    pub(super) fn verdict(&self) -> Outcome {
        let missed = self.targets.iter().filter(|target| !target.is_met());
        let missed: Vec<String> = missed.map(Target::complaint).collect();
        if missed.is_empty() { Ok(()) } else { Err(Failure::new(format!("targets missed: {}", missed.join(", ")))) }
    }
}

fn row(target: &Target) -> Value {
    let (bound, number) = match target.bound {
        Bound::AtMost(max) => ("max", max),
        Bound::AtLeast(min) => ("min", min),
    };
    json!({ "name": target.name, "value": target.value, bound: number, "unit": target.unit, "met": target.is_met() })
}

#[cfg(test)]
mod tests {
    use super::Bound::{AtLeast, AtMost};
    use super::*;

    fn report(values: &[f64]) -> Report {
        let mut report = Report::default();
        for value in values {
            report.target(Target { name: "plan", value: *value, bound: AtMost(10.0), unit: "x a bare merge" });
        }
        report
    }

    #[test]
    fn a_missed_target_is_named_with_its_value() {
        let failure = report(&[3.0, 10.5]).verdict().unwrap_err();
        assert_eq!(failure.to_string(), "targets missed: `plan` is 10.50, above 10");
    }

    #[test]
    fn a_target_is_met_up_to_its_maximum_and_never_by_what_is_no_number() {
        assert_eq!(report(&[10.0]).verdict(), Ok(()));
        assert!(report(&[f64::NAN]).verdict().is_err());
    }

    #[test]
    fn a_rate_is_met_from_its_minimum_on() {
        let rate = |value: f64| {
            let mut report = Report::default();
            report.target(Target { name: "simulator", value, bound: AtLeast(5000.0), unit: "schedules per second" });
            (report.verdict().map_err(|failure| failure.to_string()), report.table(), report.json().contains("\"min\": 5000.0"))
        };
        let met = "simulator         5000.00  at least 5000.00  met     schedules per second\n";
        assert_eq!(rate(5000.0), (Ok(()), met.to_owned(), true));
        assert_eq!(rate(4999.0).0, Err("targets missed: `simulator` is 4999.00, below 5000".to_owned()));
        assert!(rate(f64::NAN).0.is_err());
    }

    #[test]
    fn people_and_machines_are_told_the_same() {
        let mut report = report(&[3.0, 10.5]);
        report.remark("journal: 0.50".to_owned());
        assert_eq!(
            report.table(),
            "plan                 3.00  at most    10.00  met     x a bare merge\nplan                10.50  at most    10.00  MISSED  x a bare merge\njournal: 0.50\n"
        );
        let parsed: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(parsed["targets"][1]["met"], false);
    }
}

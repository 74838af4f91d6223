//! The report: what was measured, the targets, and whether they are met.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::shell::{TaskError, TaskResult};

/// The bound of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TargetBound {
    AtMost(f64),
    AtLeast(f64),
}

/// One target. It is met if the value is within its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BenchTarget {
    pub(super) name: &'static str,
    pub(super) value: f64,
    pub(super) bound: TargetBound,
    /// The unit of the value, printed after it.
    pub(super) unit: &'static str,
}

impl BenchTarget {
    /// Not `!(value > max)`: NaN must not meet a target.
    fn is_met(&self) -> bool {
        match self.bound {
            TargetBound::AtMost(max) => self.value <= max,
            TargetBound::AtLeast(min) => self.value >= min,
        }
    }

    fn missed_text(&self) -> String {
        let Self { name, value, bound, .. } = self;
        match bound {
            TargetBound::AtMost(max) => format!("`{name}` is {value:.2}, above {max}"),
            TargetBound::AtLeast(min) => format!("`{name}` is {value:.2}, below {min}"),
        }
    }
}

#[derive(Default)]
pub(super) struct BenchReport {
    targets: Vec<BenchTarget>,
    remarks: Vec<String>,
    measurements: Map<String, Value>,
}

impl BenchReport {
    pub(super) fn add_target(&mut self, target: BenchTarget) {
        self.targets.push(target);
    }

    /// Adds a line that is printed and not judged.
    pub(super) fn add_remark(&mut self, line: String) {
        self.remarks.push(line);
    }

    pub(super) fn add_measurement(&mut self, name: &str, measurement: Value) {
        self.measurements.insert(name.to_owned(), measurement);
    }

    pub(super) fn to_json(&self) -> String {
        let targets: Vec<Value> = self.targets.iter().map(target_json).collect();
        let report = json!({ "schema": "converger.bench/1", "targets": targets, "measurements": self.measurements });
        format!("{report:#}\n")
    }

    pub(super) fn render_table(&self) -> String {
        let mut table = String::new();
        for target in &self.targets {
            let verdict = if target.is_met() { "met" } else { "MISSED" };
            // Writing to a string cannot fail.
            let (most, bound) = match target.bound {
                TargetBound::AtMost(max) => ("at most", max),
                TargetBound::AtLeast(min) => ("at least", min),
            };
            let _ = writeln!(table, "{:<17} {:>7.2}  {most:<8} {bound:>7.2}  {verdict:<6}  {}", target.name, target.value, target.unit);
        }
        for remark in &self.remarks {
            let _ = writeln!(table, "{remark}");
        }
        table
    }

    /// Fails with all missed targets in one sentence.
    pub(super) fn check_targets(&self) -> TaskResult {
        let missed = self.targets.iter().filter(|target| !target.is_met());
        let missed: Vec<String> = missed.map(BenchTarget::missed_text).collect();
        if missed.is_empty() { Ok(()) } else { Err(TaskError::new(format!("targets missed: {}", missed.join(", ")))) }
    }
}

fn target_json(target: &BenchTarget) -> Value {
    let (bound, number) = match target.bound {
        TargetBound::AtMost(max) => ("max", max),
        TargetBound::AtLeast(min) => ("min", min),
    };
    json!({ "name": target.name, "value": target.value, bound: number, "unit": target.unit, "met": target.is_met() })
}

#[cfg(test)]
mod tests {
    use super::TargetBound::{AtLeast, AtMost};
    use super::*;

    fn test_report(values: &[f64]) -> BenchReport {
        let mut report = BenchReport::default();
        for value in values {
            report.add_target(BenchTarget { name: "plan", value: *value, bound: AtMost(10.0), unit: "x a bare merge" });
        }
        report
    }

    #[test]
    fn a_missed_target_is_named_with_its_value() {
        let failure = test_report(&[3.0, 10.5]).check_targets().unwrap_err();
        assert_eq!(failure.to_string(), "targets missed: `plan` is 10.50, above 10");
    }

    #[test]
    fn targets_are_met_up_to_their_maximum_and_never_by_nan() {
        assert_eq!(test_report(&[10.0]).check_targets(), Ok(()));
        assert!(test_report(&[f64::NAN]).check_targets().is_err());
    }

    #[test]
    fn rates_are_met_from_their_minimum() {
        let rate = |value: f64| {
            let mut report = BenchReport::default();
            report.add_target(BenchTarget { name: "simulator", value, bound: AtLeast(5000.0), unit: "schedules per second" });
            (
                report.check_targets().map_err(|failure| failure.to_string()),
                report.render_table(),
                report.to_json().contains("\"min\": 5000.0"),
            )
        };
        let met = "simulator         5000.00  at least 5000.00  met     schedules per second\n";
        assert_eq!(rate(5000.0), (Ok(()), met.to_owned(), true));
        assert_eq!(rate(4999.0).0, Err("targets missed: `simulator` is 4999.00, below 5000".to_owned()));
        assert!(rate(f64::NAN).0.is_err());
    }

    #[test]
    fn table_and_json_report_the_same() {
        let mut report = test_report(&[3.0, 10.5]);
        report.add_remark("journal: 0.50".to_owned());
        assert_eq!(
            report.render_table(),
            "plan                 3.00  at most    10.00  met     x a bare merge\nplan                10.50  at most    10.00  MISSED  x a bare merge\njournal: 0.50\n"
        );
        let parsed: Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(parsed["targets"][1]["met"], false);
    }
}

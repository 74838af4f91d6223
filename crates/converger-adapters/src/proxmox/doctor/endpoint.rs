//! Findings about each endpoint: whether it answers, whether it is trusted and until when, its clock, its release.

use super::finding::{DoctorFinding, FindingLevel, RemedyTarget, join_some};
use super::gather::{DoctorAnswers, EndpointAnswers, VersionFailure};
use super::quote_foreign;
use crate::proxmox::client::{Trust, TrustFailure};
use crate::proxmox::codec::{EscapedText, FailureCause, ProxmoxVersion};
use crate::proxmox::observe;
use crate::proxmox::observe::UnknownReason;
use converger_core::failure::FailureCode;
use converger_core::timestamp;

/// A certificate that ends sooner is worth a word: Proxmox renews its own two weeks before.
const ENDS_SOON_SECS: u64 = 14 * 86_400;

/// Clocks that differ by so much are worth a word, and by so much make times useless. A header tells whole seconds, and was
/// written some time before it was read, so that a second or two mean nothing.
const CLOCK_WARN_SECS: u64 = 5;
const CLOCK_FAIL_SECS: u64 = 60;

pub(super) fn endpoint_findings(gathered: &DoctorAnswers) -> Vec<DoctorFinding> {
    let works = gathered.endpoints.iter().any(|seen| seen.version.is_ok());
    // One of several that does not answer is borne; if none does, nothing works.
    let silent = if works { FindingLevel::Warn } else { FindingLevel::Fail };
    gathered.endpoints.iter().flat_map(|seen| single_endpoint_findings(gathered, seen, silent)).collect()
}

fn single_endpoint_findings(gathered: &DoctorAnswers, seen: &EndpointAnswers, silent: FindingLevel) -> Vec<DoctorFinding> {
    let parts = [
        Some(reachability_finding(gathered, seen, silent)),
        tls_finding(gathered, seen),
        seen.ahead_secs.map(endpoint_clock_finding),
        release_finding(seen),
    ];
    parts.into_iter().flatten().map(|finding| finding.with_subject(seen.place.clone())).collect()
}

/// Whether it answers, and as Proxmox does.
fn reachability_finding(gathered: &DoctorAnswers, seen: &EndpointAnswers, silent: FindingLevel) -> DoctorFinding {
    let failure = match &seen.version {
        Ok(_) => return DoctorFinding::new("endpoint", FindingLevel::Ok, "it answers"),
        Err(VersionFailure::NoClient(error)) => {
            let found = format!("it cannot be asked: {}", EscapedText(error));
            return DoctorFinding::new("endpoint", FindingLevel::Fail, found)
                .with_code(FailureCode::ClientSetup)
                .with_remedy("fix its entry in converger.toml");
        }
        Err(VersionFailure::Failed(failure)) => failure,
    };
    let remedy = || observe::failure_remedy(failure, gathered.token.as_str());
    let finding = match failure.cause {
        FailureCause::Unauthenticated => return DoctorFinding::new("endpoint", FindingLevel::Ok, "it answers"),
        FailureCause::Unreachable => DoctorFinding::new("endpoint", silent, failure.without_endpoint_name(&seen.place))
            .with_remedy("check the address and the port, that no firewall is between, and that the node is up and answers")
            .with_line(RemedyTarget::Node, "systemctl status pveproxy"),
        cause if cause.is_connect_failure() => {
            DoctorFinding::new("endpoint", FindingLevel::Fail, "there is somebody, who is not trusted, so that nothing was said")
        }
        FailureCause::TooSlow | FailureCause::Interrupted => {
            DoctorFinding::new("endpoint", silent, failure.without_endpoint_name(&seen.place)).with_remedy(remedy())
        }
        _ => DoctorFinding::new("endpoint", FindingLevel::Fail, failure.without_endpoint_name(&seen.place)).with_remedy(remedy()),
    };
    finding.with_code(failure.cause.code())
}

/// Whom was trusted, and what was shown.
fn tls_finding(gathered: &DoctorAnswers, seen: &EndpointAnswers) -> Option<DoctorFinding> {
    if let Some(distrust) = &seen.distrust {
        return Some(distrust_finding(seen, distrust));
    }
    let shown = seen.fingerprint?;
    let mut found = match &seen.trust {
        Trust::System => format!("trusted by the system's authorities; it shows {shown}"),
        Trust::CaFile(path) => format!("trusted by the authorities in {}; it shows {shown}", EscapedText(&path.display().to_string())),
        // The one that it shows stands in converger.toml already.
        Trust::Fingerprints(pins) if pins.len() == 1 => "trusted by its pinned fingerprint".to_owned(),
        Trust::Fingerprints(pins) => format!("trusted by one of {} pinned fingerprints; it shows {shown}", pins.len()),
    };
    let Some(validity) = seen.validity else { return Some(DoctorFinding::new("tls", FindingLevel::Ok, found)) };
    found.push_str(&format!(", valid until {}", timestamp::format_date(validity.until_secs)));
    let left_secs = validity.until_secs.saturating_sub(gathered.now_secs);
    if left_secs > ENDS_SOON_SECS {
        return Some(DoctorFinding::new("tls", FindingLevel::Ok, found));
    }
    let ends = if left_secs == 0 { "its date has passed".to_owned() } else { format!("{} days are left", left_secs / 86_400) };
    Some(with_renewal_remedy(DoctorFinding::new("tls", FindingLevel::Warn, format!("{found}: {ends}")), &seen.trust))
}

/// What to do about a certificate that ends.
fn with_renewal_remedy(finding: DoctorFinding, trust: &Trust) -> DoctorFinding {
    let text = match trust {
        Trust::Fingerprints(_) => {
            "renew it on the node, and add the fingerprint of the new one to `fingerprints` before the old one is gone; one from ACME is \
             renewed with `pvenode acme cert renew`"
        }
        Trust::System | Trust::CaFile(_) => "renew it on the node; one from ACME is renewed with `pvenode acme cert renew`",
    };
    finding.with_remedy(text).with_line(RemedyTarget::Node, "pvecm updatecerts --force && systemctl restart pveproxy")
}

fn distrust_finding(seen: &EndpointAnswers, distrust: &TrustFailure) -> DoctorFinding {
    let shown = seen.fingerprint.map_or_else(String::new, |fingerprint| format!("; it shows {fingerprint}"));
    let fail = |check, found: String| DoctorFinding::new(check, FindingLevel::Fail, format!("{found}{shown}"));
    // What it shows stands in the line that pins it.
    let unpinned = |check, found: String| DoctorFinding::new(check, FindingLevel::Fail, found);
    match distrust {
        TrustFailure::NotPinned => with_pin_remedy(
            unpinned("tls-pin", "the certificate is none of those that are pinned".into()),
            seen,
            "if it was renewed, compare it there",
        ),
        TrustFailure::WithoutKey => fail("tls-key", "whoever answers shows a pinned certificate and does not have its key".into())
            .with_remedy("somebody else answers here: find out who, and send nothing"),
        TrustFailure::Expired => with_renewal_remedy(fail("tls-expired", "the certificate has expired".into()), &seen.trust),
        TrustFailure::NotYetValid => fail("tls-early", "the certificate is not valid yet".into())
            .with_remedy("compare the clocks of both machines")
            .with_line(RemedyTarget::Node, "timedatectl"),
        TrustFailure::OtherName(names) => {
            let names = if names.is_empty() { "another name".to_owned() } else { join_some(names.iter().map(|name| quote_foreign(name))) };
            let finding = unpinned("tls-name", format!("the certificate is for {names}, not for the name in `url`"));
            with_pin_remedy(finding, seen, "use one of its names in `url`; or, if none is known here, compare it there and pin it")
        }
        TrustFailure::UnknownIssuer => {
            let text = "name the cluster's own authority (`ca` in converger.toml, /etc/pve/pve-root-ca.pem on a node); or compare it there and pin it";
            with_pin_remedy(unpinned("tls-issuer", "the certificate is from an authority that is not trusted".into()), seen, text)
        }
        TrustFailure::Certificate(fault) => fail("tls-certificate", format!("the certificate cannot be trusted ({})", EscapedText(fault))),
        TrustFailure::Protocol(error) => fail("tls-protocol", format!("TLS could not be set up ({})", EscapedText(error)))
            .with_remedy("check that this is the port of Proxmox's API (8006)"),
    }
}

/// The line to look at on the node, and the one that pins what was shown.
fn with_pin_remedy(finding: DoctorFinding, seen: &EndpointAnswers, text: &str) -> DoctorFinding {
    let finding = finding.with_remedy(format!("{text}, and trust it only if it is the same; otherwise somebody else answers here"));
    let Some(fingerprint) = seen.fingerprint else { return finding };
    finding
        .with_line(RemedyTarget::Node, "pvenode cert info")
        .with_line(RemedyTarget::Config, format!("fingerprints = [\"{fingerprint}\"]"))
}

fn endpoint_clock_finding(ahead_secs: i64) -> DoctorFinding {
    clock_finding("clock", ahead_secs)
}

/// How a clock stands to ours.
pub(super) fn clock_finding(check: &'static str, ahead_secs: i64) -> DoctorFinding {
    let off = ahead_secs.unsigned_abs();
    let side = if ahead_secs > 0 { "ahead of" } else { "behind" };
    let level = match off {
        CLOCK_FAIL_SECS.. => FindingLevel::Fail,
        CLOCK_WARN_SECS.. => FindingLevel::Warn,
        _ => return DoctorFinding::new(check, FindingLevel::Ok, "its clock agrees with ours to a few seconds"),
    };
    DoctorFinding::new(check, level, format!("its clock is {off} s {side} ours"))
        .with_remedy("let both machines take their time from the same source; expiry, task times and change windows are told by it")
        .with_line(RemedyTarget::Node, "timedatectl && chronyc tracking")
}

fn release_finding(seen: &EndpointAnswers) -> Option<DoctorFinding> {
    let version = seen.version.as_ref().ok()?;
    Some(version_finding(version))
}

fn version_finding(version: &ProxmoxVersion) -> DoctorFinding {
    let found = format!("Proxmox VE {}", EscapedText(&version.version));
    if version.is_known() {
        return DoctorFinding::new("version", FindingLevel::Ok, found);
    }
    DoctorFinding::new("version", FindingLevel::Warn, format!("{found}; this program knows 7, 8 and 9"))
        .with_remedy(UnknownReason::ReleaseUnsupported.remedy())
}

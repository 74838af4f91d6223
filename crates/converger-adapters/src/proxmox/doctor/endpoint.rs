//! Findings about each endpoint: whether it responds, its certificate, its clock, its release.

use super::finding::{DoctorFinding, FindingLevel, RemedyTarget, join_some};
use super::gather::{DoctorAnswers, EndpointAnswers, VersionFailure};
use super::quote_foreign;
use crate::proxmox::client::{Trust, TrustFailure};
use crate::proxmox::codec::{EscapedText, FailureCause, ProxmoxVersion};
use crate::proxmox::observe;
use crate::proxmox::observe::UnknownReason;
use converger_core::failure::FailureCode;
use converger_core::timestamp;

/// A certificate that expires sooner is worth a warning. Proxmox renews its own two weeks before they expire.
const ENDS_SOON_SECS: u64 = 14 * 86_400;

/// Clock differences that are worth a warning, and that make times useless. The header has whole seconds and was written some time before
/// it was read, so a second or two mean nothing.
const CLOCK_WARN_SECS: u64 = 5;
const CLOCK_FAIL_SECS: u64 = 60;

pub(super) fn endpoint_findings(doctor_answers: &DoctorAnswers) -> Vec<DoctorFinding> {
    let works = doctor_answers.endpoints.iter().any(|seen| seen.version.is_ok());
    // One unresponsive endpoint among several is tolerable; if none responds, nothing works.
    let unreachable_level = if works { FindingLevel::Warn } else { FindingLevel::Fail };
    doctor_answers.endpoints.iter().flat_map(|seen| single_endpoint_findings(doctor_answers, seen, unreachable_level)).collect()
}

fn single_endpoint_findings(doctor_answers: &DoctorAnswers, seen: &EndpointAnswers, unreachable_level: FindingLevel) -> Vec<DoctorFinding> {
    let parts = [
        Some(reachability_finding(doctor_answers, seen, unreachable_level)),
        tls_finding(doctor_answers, seen),
        seen.ahead_secs.map(endpoint_clock_finding),
        release_finding(seen),
    ];
    parts.into_iter().flatten().map(|finding| finding.with_subject(seen.endpoint.clone())).collect()
}

/// Whether it responds as Proxmox does.
fn reachability_finding(doctor_answers: &DoctorAnswers, seen: &EndpointAnswers, unreachable_level: FindingLevel) -> DoctorFinding {
    let failure = match &seen.version {
        Ok(_) => return DoctorFinding::new("endpoint", FindingLevel::Ok, "it responds"),
        Err(VersionFailure::NoClient(error)) => {
            let found = format!("no client can be set up: {}", EscapedText(error));
            return DoctorFinding::new("endpoint", FindingLevel::Fail, found)
                .with_code(FailureCode::ClientSetup)
                .with_remedy("fix its entry in converger.toml");
        }
        Err(VersionFailure::Failed(failure)) => failure,
    };
    let remedy = || observe::failure_remedy(failure, doctor_answers.token.as_str());
    let finding = match failure.cause {
        FailureCause::Unauthenticated => return DoctorFinding::new("endpoint", FindingLevel::Ok, "it responds"),
        FailureCause::Unreachable => DoctorFinding::new("endpoint", unreachable_level, failure.without_endpoint_name(&seen.endpoint))
            .with_remedy("check the address and the port, firewalls in between, and that the node is up and responds")
            .with_line(RemedyTarget::Node, "systemctl status pveproxy"),
        cause if cause.is_connect_failure() => {
            DoctorFinding::new("endpoint", FindingLevel::Fail, "the server is not trusted, so no request was sent")
        }
        FailureCause::TooSlow | FailureCause::Interrupted => {
            DoctorFinding::new("endpoint", unreachable_level, failure.without_endpoint_name(&seen.endpoint)).with_remedy(remedy())
        }
        _ => DoctorFinding::new("endpoint", FindingLevel::Fail, failure.without_endpoint_name(&seen.endpoint)).with_remedy(remedy()),
    };
    finding.with_code(failure.cause.code())
}

/// Why the server was trusted, and which certificate it presented.
fn tls_finding(doctor_answers: &DoctorAnswers, seen: &EndpointAnswers) -> Option<DoctorFinding> {
    if let Some(trust_failure) = &seen.distrust {
        return Some(distrust_finding(seen, trust_failure));
    }
    let fingerprint = seen.fingerprint?;
    let mut found = match &seen.trust {
        Trust::System => format!("trusted by the system's authorities; its fingerprint is {fingerprint}"),
        Trust::CaFile(path) => {
            format!("trusted by the CA file {}; its fingerprint is {fingerprint}", EscapedText(&path.display().to_string()))
        }
        // The pinned fingerprint is in converger.toml already.
        Trust::Fingerprints(pins) if pins.len() == 1 => "trusted by its pinned fingerprint".to_owned(),
        Trust::Fingerprints(pins) => format!("trusted by one of {} pinned fingerprints, {fingerprint}", pins.len()),
    };
    let Some(validity) = seen.validity else { return Some(DoctorFinding::new("tls", FindingLevel::Ok, found)) };
    found.push_str(&format!(", valid until {}", timestamp::format_date(validity.until_secs)));
    let left_secs = validity.until_secs.saturating_sub(doctor_answers.now_secs);
    if left_secs > ENDS_SOON_SECS {
        return Some(DoctorFinding::new("tls", FindingLevel::Ok, found));
    }
    let ends = if left_secs == 0 { "it has expired".to_owned() } else { format!("{} days are left", left_secs / 86_400) };
    Some(with_renewal_remedy(DoctorFinding::new("tls", FindingLevel::Warn, format!("{found}: {ends}")), &seen.trust))
}

/// The remedy for an expiring certificate.
fn with_renewal_remedy(finding: DoctorFinding, trust: &Trust) -> DoctorFinding {
    let text = match trust {
        Trust::Fingerprints(_) => {
            "renew it on the node, and add the new fingerprint to `fingerprints` before the old certificate expires; one from ACME is \
             renewed with `pvenode acme cert renew`"
        }
        Trust::System | Trust::CaFile(_) => "renew it on the node; one from ACME is renewed with `pvenode acme cert renew`",
    };
    finding.with_remedy(text).with_line(RemedyTarget::Node, "pvecm updatecerts --force && systemctl restart pveproxy")
}

fn distrust_finding(seen: &EndpointAnswers, trust_failure: &TrustFailure) -> DoctorFinding {
    let fingerprint_text = seen.fingerprint.map_or_else(String::new, |fingerprint| format!("; its fingerprint is {fingerprint}"));
    let fail = |check, found: String| DoctorFinding::new(check, FindingLevel::Fail, format!("{found}{fingerprint_text}"));
    // The fingerprint is in the line that pins it.
    let unpinned = |check, found: String| DoctorFinding::new(check, FindingLevel::Fail, found);
    match trust_failure {
        TrustFailure::NotPinned => with_pin_remedy(
            unpinned("tls-pin", "the certificate matches no pinned fingerprint".into()),
            seen,
            "if it was renewed, compare the fingerprint on the node",
        ),
        TrustFailure::WithoutKey => fail("tls-key", "the server presents a pinned certificate but lacks its key".into())
            .with_remedy("another server responds at this address: find out which one, and send it nothing"),
        TrustFailure::Expired => with_renewal_remedy(fail("tls-expired", "the certificate has expired".into()), &seen.trust),
        TrustFailure::NotYetValid => fail("tls-early", "the certificate is not valid yet".into())
            .with_remedy("compare the clocks of both machines")
            .with_line(RemedyTarget::Node, "timedatectl"),
        TrustFailure::OtherName(names) => {
            let names = if names.is_empty() { "another name".to_owned() } else { join_some(names.iter().map(|name| quote_foreign(name))) };
            let finding = unpinned("tls-name", format!("the certificate is for {names}, not for the name in `url`"));
            with_pin_remedy(
                finding,
                seen,
                "use one of its names in `url`; or, if none resolves here, compare the fingerprint on the node and pin it",
            )
        }
        TrustFailure::UnknownIssuer => {
            let text = "set `ca` in converger.toml to the cluster's own authority (/etc/pve/pve-root-ca.pem on a node); or compare the fingerprint there and pin it";
            with_pin_remedy(unpinned("tls-issuer", "the certificate is issued by an authority that is not trusted".into()), seen, text)
        }
        TrustFailure::Certificate(fault) => fail("tls-certificate", format!("the certificate cannot be trusted ({})", EscapedText(fault))),
        TrustFailure::Protocol(error) => fail("tls-protocol", format!("TLS could not be set up ({})", EscapedText(error)))
            .with_remedy("check that this is the port of the Proxmox API (8006)"),
    }
}

/// Adds the command that shows the certificate on the node, and the line that pins the presented one.
fn with_pin_remedy(finding: DoctorFinding, seen: &EndpointAnswers, text: &str) -> DoctorFinding {
    let finding =
        finding.with_remedy(format!("{text}, and trust it only if both are equal; otherwise another server responds at this address"));
    let Some(fingerprint) = seen.fingerprint else { return finding };
    finding
        .with_line(RemedyTarget::Node, "pvenode cert info")
        .with_line(RemedyTarget::Config, format!("fingerprints = [\"{fingerprint}\"]"))
}

fn endpoint_clock_finding(ahead_secs: i64) -> DoctorFinding {
    clock_finding("clock", ahead_secs)
}

/// Compares a clock with ours.
pub(super) fn clock_finding(check: &'static str, ahead_secs: i64) -> DoctorFinding {
    let off = ahead_secs.unsigned_abs();
    let side = if ahead_secs > 0 { "ahead of" } else { "behind" };
    let level = match off {
        CLOCK_FAIL_SECS.. => FindingLevel::Fail,
        CLOCK_WARN_SECS.. => FindingLevel::Warn,
        _ => return DoctorFinding::new(check, FindingLevel::Ok, "its clock agrees with ours to within a few seconds"),
    };
    DoctorFinding::new(check, level, format!("its clock is {off} s {side} ours"))
        .with_remedy("synchronise both machines with the same time source; expiry, task times and change windows depend on it")
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
    DoctorFinding::new("version", FindingLevel::Warn, format!("{found}; this program supports 7, 8 and 9"))
        .with_remedy(UnknownReason::ReleaseUnsupported.remedy())
}

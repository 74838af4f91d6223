//! Findings about each endpoint: whether it answers, whether it is trusted and until when, its clock, its release.

use super::finding::{Finding, Level, Where, listed};
use super::gather::{EndpointSeen, Gathered, Unasked};
use super::theirs;
use crate::proxmox::client::{Distrust, Trust};
use crate::proxmox::codec::{Cause, Shown, Version};
use crate::proxmox::observe;
use crate::proxmox::observe::Reason;
use converger_core::failure::Code;
use converger_core::moment;

/// A certificate that ends sooner is worth a word: Proxmox renews its own two weeks before.
const ENDS_SOON_SECS: u64 = 14 * 86_400;

/// Clocks that differ by so much are worth a word, and by so much make times useless. A header tells whole seconds, and was
/// written some time before it was read, so that a second or two mean nothing.
const CLOCK_WARN_SECS: u64 = 5;
const CLOCK_FAIL_SECS: u64 = 60;

pub(super) fn findings(gathered: &Gathered) -> Vec<Finding> {
    let works = gathered.endpoints.iter().any(|seen| seen.version.is_ok());
    // One of several that does not answer is borne; if none does, nothing works.
    let silent = if works { Level::Warn } else { Level::Fail };
    gathered.endpoints.iter().flat_map(|seen| of_endpoint(gathered, seen, silent)).collect()
}

fn of_endpoint(gathered: &Gathered, seen: &EndpointSeen, silent: Level) -> Vec<Finding> {
    let parts = [Some(reach(gathered, seen, silent)), tls(gathered, seen), seen.ahead_secs.map(clock), release(seen)];
    parts.into_iter().flatten().map(|finding| finding.about(seen.place.clone())).collect()
}

/// Whether it answers, and as Proxmox does.
fn reach(gathered: &Gathered, seen: &EndpointSeen, silent: Level) -> Finding {
    let failure = match &seen.version {
        Ok(_) => return Finding::new("endpoint", Level::Ok, "it answers"),
        Err(Unasked::NoWay(error)) => {
            let found = format!("it cannot be asked: {}", Shown(error));
            return Finding::new("endpoint", Level::Fail, found).code(Code::ClientSetup).remedy("mend what converger.toml says about it");
        }
        Err(Unasked::Failed(failure)) => failure,
    };
    let remedy = || observe::remedy(failure, gathered.token.as_str());
    let finding = match failure.cause {
        Cause::Unauthenticated => return Finding::new("endpoint", Level::Ok, "it answers"),
        Cause::Unreachable => Finding::new("endpoint", silent, failure.without_place(&seen.place))
            .remedy("check the address and the port, that no firewall is between, and that the node is up and answers")
            .line(Where::Node, "systemctl status pveproxy"),
        cause if cause.is_no_connection() => {
            Finding::new("endpoint", Level::Fail, "there is somebody, who is not trusted, so that nothing was said")
        }
        Cause::TooSlow | Cause::Interrupted => Finding::new("endpoint", silent, failure.without_place(&seen.place)).remedy(remedy()),
        _ => Finding::new("endpoint", Level::Fail, failure.without_place(&seen.place)).remedy(remedy()),
    };
    finding.code(failure.cause.code())
}

/// Whom was trusted, and what was shown.
fn tls(gathered: &Gathered, seen: &EndpointSeen) -> Option<Finding> {
    if let Some(distrust) = &seen.distrust {
        return Some(distrusted(seen, distrust));
    }
    let shown = seen.fingerprint?;
    let mut found = match &seen.trust {
        Trust::System => format!("trusted by the system's authorities; it shows {shown}"),
        Trust::CaFile(path) => format!("trusted by the authorities in {}; it shows {shown}", Shown(&path.display().to_string())),
        // The one that it shows stands in converger.toml already.
        Trust::Fingerprints(pins) if pins.len() == 1 => "trusted by its pinned fingerprint".to_owned(),
        Trust::Fingerprints(pins) => format!("trusted by one of {} pinned fingerprints; it shows {shown}", pins.len()),
    };
    let Some(validity) = seen.validity else { return Some(Finding::new("tls", Level::Ok, found)) };
    found.push_str(&format!(", valid until {}", moment::date(validity.until_secs)));
    let left_secs = validity.until_secs.saturating_sub(gathered.now_secs);
    if left_secs > ENDS_SOON_SECS {
        return Some(Finding::new("tls", Level::Ok, found));
    }
    let ends = if left_secs == 0 { "its date has passed".to_owned() } else { format!("{} days are left", left_secs / 86_400) };
    Some(renewed(Finding::new("tls", Level::Warn, format!("{found}: {ends}")), &seen.trust))
}

/// What to do about a certificate that ends.
fn renewed(finding: Finding, trust: &Trust) -> Finding {
    let text = match trust {
        Trust::Fingerprints(_) => {
            "renew it on the node, and add the fingerprint of the new one to `fingerprints` before the old one is gone; one from ACME is \
             renewed with `pvenode acme cert renew`"
        }
        Trust::System | Trust::CaFile(_) => "renew it on the node; one from ACME is renewed with `pvenode acme cert renew`",
    };
    finding.remedy(text).line(Where::Node, "pvecm updatecerts --force && systemctl restart pveproxy")
}

fn distrusted(seen: &EndpointSeen, distrust: &Distrust) -> Finding {
    let shown = seen.fingerprint.map_or_else(String::new, |fingerprint| format!("; it shows {fingerprint}"));
    let fail = |check, found: String| Finding::new(check, Level::Fail, format!("{found}{shown}"));
    // What it shows stands in the line that pins it.
    let unpinned = |check, found: String| Finding::new(check, Level::Fail, found);
    match distrust {
        Distrust::NotPinned => pinned(
            unpinned("tls-pin", "the certificate is none of those that are pinned".into()),
            seen,
            "if it was renewed, compare it there",
        ),
        Distrust::WithoutKey => fail("tls-key", "whoever answers shows a pinned certificate and does not have its key".into())
            .remedy("somebody else answers here: find out who, and send nothing"),
        Distrust::Expired => renewed(fail("tls-expired", "the certificate has expired".into()), &seen.trust),
        Distrust::NotYetValid => fail("tls-early", "the certificate is not valid yet".into())
            .remedy("compare the clocks of both machines")
            .line(Where::Node, "timedatectl"),
        Distrust::OtherName(names) => {
            let names = if names.is_empty() { "another name".to_owned() } else { listed(names.iter().map(|name| theirs(name))) };
            let finding = unpinned("tls-name", format!("the certificate is for {names}, not for the name in `url`"));
            pinned(finding, seen, "use one of its names in `url`; or, if none is known here, compare it there and pin it")
        }
        Distrust::UnknownIssuer => {
            let text = "name the cluster's own authority (`ca` in converger.toml, /etc/pve/pve-root-ca.pem on a node); or compare it there and pin it";
            pinned(unpinned("tls-issuer", "the certificate is from an authority that is not trusted".into()), seen, text)
        }
        Distrust::Certificate(fault) => fail("tls-certificate", format!("the certificate cannot be trusted ({})", Shown(fault))),
        Distrust::Protocol(error) => fail("tls-protocol", format!("TLS could not be set up ({})", Shown(error)))
            .remedy("check that this is the port of Proxmox's API (8006)"),
    }
}

/// The line to look at on the node, and the one that pins what was shown.
fn pinned(finding: Finding, seen: &EndpointSeen, text: &str) -> Finding {
    let finding = finding.remedy(format!("{text}, and trust it only if it is the same; otherwise somebody else answers here"));
    let Some(fingerprint) = seen.fingerprint else { return finding };
    finding.line(Where::Node, "pvenode cert info").line(Where::Config, format!("fingerprints = [\"{fingerprint}\"]"))
}

fn clock(ahead_secs: i64) -> Finding {
    clock_finding("clock", ahead_secs)
}

/// How a clock stands to ours.
pub(super) fn clock_finding(check: &'static str, ahead_secs: i64) -> Finding {
    let off = ahead_secs.unsigned_abs();
    let side = if ahead_secs > 0 { "ahead of" } else { "behind" };
    let level = match off {
        CLOCK_FAIL_SECS.. => Level::Fail,
        CLOCK_WARN_SECS.. => Level::Warn,
        _ => return Finding::new(check, Level::Ok, "its clock agrees with ours to a few seconds"),
    };
    Finding::new(check, level, format!("its clock is {off} s {side} ours"))
        .remedy("let both machines take their time from the same source; expiry, task times and change windows are told by it")
        .line(Where::Node, "timedatectl && chronyc tracking")
}

fn release(seen: &EndpointSeen) -> Option<Finding> {
    let version = seen.version.as_ref().ok()?;
    Some(of_release(version))
}

fn of_release(version: &Version) -> Finding {
    let found = format!("Proxmox VE {}", Shown(&version.version));
    if version.is_known() {
        return Finding::new("version", Level::Ok, found);
    }
    Finding::new("version", Level::Warn, format!("{found}; this program knows 7, 8 and 9")).remedy(Reason::ReleaseUnsupported.remedy())
}

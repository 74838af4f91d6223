//! A judged plan as text: refusals of the whole run, guests by verdict, one line of summary.
//!
//! A refusal of the whole run comes first, because nothing below it would be done. Steps come last, next to the summary and the question.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use converger_core::action::{Change, ChangeClass, ExistingSnapshot, Impact, Provisioning, Risk};
use converger_core::approve::NeededApproval;
use converger_core::audit::{self, AuditConclusion, PlanSummary};
use converger_core::desired::{DesiredGuest, DesiredSetting, RestartPolicy};
use converger_core::guest::GuestKind;
use converger_core::intent::ActionRequest;
use converger_core::observe::PendingChange;
use converger_core::plan::{Plan, Step};
use converger_core::policy::Limits;
use converger_core::refusal::Refusal;
use converger_core::safety::{Judged, JudgedVerdict};
use converger_core::timestamp;

use super::field_change::render_field_change;
use super::{
    BOLD, CYAN, DIM, GREEN, RED, ShownRemedies, YELLOW, apply_style, count_with_noun, join_counts, quote_untrusted, render_guest_refusals,
    render_refusal, serialized_name,
};
use crate::verbosity::Verbosity;

/// Converged guests are listed up to this number, and only counted above it.
const CONVERGED_SHOWN_MAX: u64 = 20;

/// Guests with steps, and refused guests, are listed up to this number each.
const GUESTS_SHOWN_MAX: usize = 50;

/// How much of a plan is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportOptions {
    verbosity: Verbosity,
    lists_converged: bool,
    shows_whole_values: bool,
    guests_shown_max: usize,
}

impl ReportOptions {
    /// Long lists and values are cut, unless everything is wanted.
    pub(crate) fn new(verbosity: Verbosity) -> Self {
        let is_verbose = verbosity == Verbosity::Verbose;
        let guests_shown_max = if is_verbose { usize::MAX } else { GUESTS_SHOWN_MAX };
        Self { verbosity, lists_converged: is_verbose, shows_whole_values: is_verbose, guests_shown_max }
    }

    /// The same, with every converged guest if `lists_converged`.
    pub(crate) fn with_converged(self, lists_converged: bool) -> Self {
        Self { lists_converged: self.lists_converged || lists_converged, ..self }
    }

    /// For a plan that a person is asked to confirm: it has every step with whole values, and every refused guest, with `--quiet` too.
    pub(crate) fn for_question(verbosity: Verbosity) -> Self {
        Self { guests_shown_max: usize::MAX, shows_whole_values: true, ..Self::new(verbosity.max(Verbosity::Normal)) }
    }
}

/// The report on a judged plan. `origin` says where the limits come from.
pub(crate) fn render_report(judged: &Judged, origin: &str, options: ReportOptions) -> String {
    let summary = audit::summarize_plan(judged);
    let mut shown = ShownRemedies::default();
    let run_refusals: Vec<String> = run_refusals(judged).map(render_refusal).collect();
    let mut sections = vec![run_refusals.join("\n")];
    if options.verbosity == Verbosity::Quiet {
        sections.push(render_group(judged, is_refused, options, &mut shown));
    } else {
        sections.insert(0, render_header(judged, &summary, origin));
        sections.push(render_converged(judged, &summary, options, &mut shown));
        sections.push(render_group(judged, is_refused, options, &mut shown));
        sections.push(render_group(judged, has_steps, options, &mut shown));
    }
    let needs = if options.verbosity == Verbosity::Quiet { String::new() } else { render_needs(judged) };
    sections.push(format!("{}\n{needs}", render_summary(judged, &summary)));
    sections.retain(|section| !section.is_empty());
    sections.join("\n")
}

fn is_refused(verdict: JudgedVerdict<'_>) -> bool {
    matches!(verdict, JudgedVerdict::Refused(_))
}

fn has_steps(verdict: JudgedVerdict<'_>) -> bool {
    matches!(verdict, JudgedVerdict::Steps(_))
}

/// Refusals of the whole run, by the planner and by its judge.
fn run_refusals(judged: &Judged) -> impl Iterator<Item = &Refusal> {
    judged.plan().refusals().iter().chain(judged.judgement().refusals())
}

fn render_header(judged: &Judged, summary: &PlanSummary, origin: &str) -> String {
    let plan = judged.plan();
    let taken_at = plan.observation().taken_at.as_deref().map(|time| format!(" · read at {time}")).unwrap_or_default();
    let scope = apply_style(DIM, format!("· {} in scope{taken_at}", count_with_noun(summary.guests, "guest")));
    let requested = plan.intent().request().map(describe_request).unwrap_or_default();
    let limits = apply_style(DIM, format!("{origin}: {}", describe_limits(judged.judgement().limits())));
    format!("{} {requested}{scope}\n{limits}\n", apply_style(BOLD, plan.desired().environment()))
}

/// The requested action and its target, as they are typed. The steps have the parameters.
fn describe_request(request: &ActionRequest) -> String {
    let target = request.target();
    let kind = match target.kind {
        GuestKind::Qemu => "vm",
        GuestKind::Lxc => "ct",
    };
    format!("· {} {kind}/{} ", request.action().name(), target.vmid)
}

/// Built-in limits are shown like configured ones: a person may not know that there are any.
fn describe_limits(limits: &Limits) -> String {
    format!("a run may change {} ({} %) and interrupt {}", count_with_noun(limits.guests.into(), "guest"), limits.percent, limits.stops)
}

fn render_converged(judged: &Judged, summary: &PlanSummary, options: ReportOptions, shown: &mut ShownRemedies) -> String {
    if options.lists_converged || summary.converged <= CONVERGED_SHOWN_MAX {
        let every = ReportOptions { guests_shown_max: usize::MAX, ..options };
        return render_group(judged, |verdict| matches!(verdict, JudgedVerdict::Converged { .. }), every, shown);
    }
    let note = apply_style(DIM, "converged; --verbose lists them");
    format!("{} {} {note}\n", apply_style(GREEN, "="), count_with_noun(summary.converged, "guest"))
}

/// The guests of one kind of verdict, in the order of the plan, as many as are to be shown.
fn render_group(
    judged: &Judged,
    is_meant: impl Fn(JudgedVerdict<'_>) -> bool,
    options: ReportOptions,
    shown: &mut ShownRemedies,
) -> String {
    let mut members = judged.guests().filter(|(_, verdict)| is_meant(*verdict));
    let listed = members.by_ref().take(options.guests_shown_max);
    let mut text: String = listed.map(|(guest, verdict)| render_guest(judged.plan(), guest, verdict, options, shown)).collect();
    let more = members.count();
    if more > 0 {
        let _ = writeln!(text, "{}", apply_style(DIM, format!("... and {more} more; --verbose shows all")));
    }
    text
}

fn render_summary(judged: &Judged, summary: &PlanSummary) -> String {
    let counts = describe_counts(summary);
    let codes: Vec<&str> = run_refusals(judged).map(|refusal| refusal.code().word()).collect();
    if !codes.is_empty() {
        return apply_style(RED.bold(), format!("The whole run is refused ({}); nothing would be done: {counts}", codes.join(", ")));
    }
    match audit::conclude_audit(judged) {
        AuditConclusion::Converged => apply_style(GREEN.bold(), format!("Converged: {counts}")),
        AuditConclusion::ChangesPending => apply_style(YELLOW.bold(), format!("Changes pending: {counts}")),
        AuditConclusion::Refused => apply_style(RED.bold(), format!("Refused: {counts}")),
    }
}

/// What must be given before the steps are applied, beyond a yes or a digest, with the guests that need it.
fn render_needs(judged: &Judged) -> String {
    if run_refusals(judged).next().is_some() {
        return String::new();
    }
    let mut guests: BTreeMap<NeededApproval, Vec<String>> = BTreeMap::new();
    for (guest, verdict) in judged.guests() {
        let JudgedVerdict::Steps(steps) = verdict else { continue };
        let needed = steps.iter().map(NeededApproval::of_step).max().unwrap_or(NeededApproval::Confirmation);
        guests.entry(needed).or_default().push(guest.vmid.to_string());
    }
    let described = guests.iter().rev().filter(|(needed, _)| **needed > NeededApproval::Confirmation).map(|(needed, vmids)| {
        let listed = if vmids.len() > NEEDING_SHOWN_MAX { count_with_noun(vmids.len() as u64, "guest") } else { vmids.join(", ") };
        format!("{} {} ({listed})\n", apply_style(CYAN, "needs:"), needed.text())
    });
    described.collect()
}

/// Up to this many guests are listed by their ids; more are counted.
const NEEDING_SHOWN_MAX: usize = 10;

/// The counts of a plan, without zeroes.
fn describe_counts(summary: &PlanSummary) -> String {
    let changed = summary.guests - summary.converged - summary.refused;
    let to_change = format!("to change in {}", count_with_noun(summary.steps, "step"));
    let counts = [(summary.converged, "converged"), (changed, &*to_change), (summary.refused, "refused"), (summary.unmanaged, "unmanaged")];
    join_counts(&counts).unwrap_or_else(|| "no guests".to_owned())
}

fn render_guest(
    plan: &Plan,
    guest: &DesiredGuest,
    verdict: JudgedVerdict<'_>,
    options: ReportOptions,
    shown: &mut ShownRemedies,
) -> String {
    let name = plan.name_of(guest).map_or("(no name)".to_owned(), quote_untrusted);
    let title = format!("{} {} {}", guest.vmid, guest.kind, apply_style(BOLD, name));
    match verdict {
        JudgedVerdict::Converged { pending_restart } => {
            let note = if pending_restart { describe_pending(plan, guest) } else { "converged".to_owned() };
            format!("{} {title} {}\n", apply_style(GREEN, "="), apply_style(DIM, note))
        }
        JudgedVerdict::Steps(steps) => {
            let steps: String = steps.iter().map(|step| render_step(step, options)).collect();
            format!("{} {title}\n{steps}", apply_style(YELLOW, "~"))
        }
        JudgedVerdict::Refused(refusals) => format!("{} {title} {}", apply_style(RED, "!"), render_guest_refusals(refusals, shown)),
    }
}

/// Declared values that are written and take effect at the next start.
fn describe_pending(plan: &Plan, guest: &DesiredGuest) -> String {
    let pending = plan.observation().find(guest.vmid).and_then(|row| row.pending.as_ref().into_option());
    let is_declared = |key: &str| guest.config.iter().any(|setting| setting.field.word() == key);
    let keys: Vec<&str> = pending.into_iter().flatten().map(PendingChange::key).filter(|key| is_declared(key)).collect();
    // Only a guest that is declared running is restarted: otherwise nothing says that it may be started again.
    let how = match guest.restart {
        RestartPolicy::Never => "`restart: when-needed` would allow one",
        RestartPolicy::WhenNeeded => "a restart of this one needs `state: running` too",
    };
    format!("converged; {} takes effect at the next start ({how})", keys.join(", "))
}

fn render_step(step: &Step, options: ReportOptions) -> String {
    let annotation = render_annotation(step, options.verbosity);
    let mut text = format!("    {}: {}{annotation}\n", apply_style(BOLD, step.change.word()), step.reason_text());
    match &step.change {
        Change::ConfigSet(fields) => {
            let fields = fields.iter().map(|field| render_field_change(field, options.shows_whole_values));
            text.extend(fields.map(|line| format!("      {line}\n")));
        }
        Change::Shutdown { timeout_secs } | Change::Reboot { timeout_secs } => {
            let _ = writeln!(text, "      {}", apply_style(DIM, format!("graceful, up to {timeout_secs} s; never forced")));
        }
        Change::Stop => {
            let _ = writeln!(text, "      {}", apply_style(DIM, "at once, as if power were cut"));
        }
        Change::Start => {}
        change => text.extend(describe_requested(change).map(|line| format!("      {line}\n"))),
    }
    if !step.wait.is_empty() {
        let ids: Vec<String> = step.wait.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "      {}", apply_style(DIM, format!("after the power step of {}", ids.join(", "))));
    }
    text
}

/// What a requested change does, in one line each. Names of snapshots and volumes are text of others.
fn describe_requested(change: &Change) -> impl Iterator<Item = String> {
    let lines: Vec<String> = match change {
        Change::SnapshotCreate(new) => {
            let ram = if new.ram { "with memory" } else { "without memory" };
            let mut lines = vec![format!("snapshot {} {ram}", new.name.as_str())];
            lines.extend(new.description.as_deref().map(|text| format!("description {}", quote_untrusted(text))));
            lines
        }
        Change::SnapshotDelete(snapshot) => vec![describe_snapshot(snapshot)],
        Change::SnapshotRollback(rollback) => {
            let volumes = rollback.volumes.iter().map(|volume| format!("replaces {}", quote_untrusted(volume)));
            let after = format!("the guest is {} afterwards; everything since the snapshot is lost", rollback.state.word());
            [describe_snapshot(&rollback.snapshot), after].into_iter().chain(volumes).collect()
        }
        Change::DiskGrow(growth) => {
            let volume = growth.volume.as_ref().map(|volume| format!(", volume {}", quote_untrusted(volume))).unwrap_or_default();
            let (disk, before, after) = (growth.disk.as_str(), growth.before, growth.after);
            vec![format!("{disk} from {before} to {after}{volume}; a disk cannot shrink again")]
        }
        Change::Migrate(migration) => {
            let (from, to, mode) = (migration.from.as_str(), migration.to.as_str(), migration.mode.word());
            let storage = migration.storage.as_ref().map(|storage| format!(" to storage {}", storage.as_str())).unwrap_or_default();
            let copied = migration.volumes.iter().map(|volume| format!("copies {}{storage}", quote_untrusted(volume)));
            std::iter::once(format!("from {from} to {to}, {mode}")).chain(copied).collect()
        }
        Change::Clone(clone) => {
            let source = &clone.source;
            let what = if source.template { "template" } else { "guest" };
            let from = format!("from {what} {} {}, {} disks", source.vmid, quote_untrusted(&source.name), clone.disks.word());
            let storage = clone.storage.as_ref().map(|storage| format!(", storage {}", storage.as_str())).unwrap_or_default();
            let pool = clone.pool.as_ref().map(|pool| format!(", pool {pool}")).unwrap_or_default();
            vec![from, format!("on node {}{storage}{pool}", clone.node.as_str())]
        }
        Change::Provision(provisioning) => describe_provisioning(provisioning),
        Change::ConfigSet(_) | Change::Start | Change::Shutdown { .. } | Change::Stop | Change::Reboot { .. } => Vec::new(),
    };
    lines.into_iter().map(|line| apply_style(DIM, line).to_string())
}

/// What a new guest gets in its first config write.
fn describe_provisioning(provisioning: &Provisioning) -> Vec<String> {
    let shown = |setting: &DesiredSetting| match &setting.wanted {
        Some(value) => format!("{} {value}", setting.field.word()),
        None => format!("{} absent", setting.field.word()),
    };
    let mut lines: Vec<String> = provisioning.fields.iter().map(shown).collect();
    lines.extend(provisioning.attributes.entries().into_iter().map(|(name, text)| format!("{name} {}", quote_untrusted(&text))));
    lines.extend(provisioning.password.as_ref().map(|reference| format!("password from {}", quote_untrusted(&reference.to_string()))));
    lines
}

fn describe_snapshot(snapshot: &ExistingSnapshot) -> String {
    let ram = if snapshot.ram { ", with memory" } else { "" };
    format!("snapshot {} of {}{ram}", snapshot.name.as_str(), timestamp::format_timestamp(snapshot.made_at))
}

fn render_annotation(step: &Step, verbosity: Verbosity) -> String {
    let (impact, risk, class) = (step.impact(), step.risk(), step.class());
    let needed = NeededApproval::of_step(step);
    if verbosity == Verbosity::Verbose {
        let classified = describe_classification(impact, risk, class);
        return format!(" {}", apply_style(DIM, format!("{}; needs {})", classified.trim_end_matches(')'), needed.text())));
    }
    let mut words = notable_words(&serialized_name(&impact), &serialized_name(&risk), &serialized_name(&class));
    // Every step needs a confirmation, and a command that is not confirmed says how. What it cannot get is said here.
    words.extend((needed == NeededApproval::Signed).then(|| format!("needs {}", needed.text())));
    if words.is_empty() { String::new() } else { format!(" {}", apply_style(YELLOW, format!("({})", words.join(", ")))) }
}

/// Impact, risk and class of a step in full. `converger explain steps` says what the words mean.
pub(crate) fn describe_classification(impact: Impact, risk: Risk, class: ChangeClass) -> String {
    format!("(impact {}, risk {}, {})", serialized_name(&impact), serialized_name(&risk), serialized_name(&class))
}

/// What a person should notice about a step: that it interrupts the guest, is risky, or cannot be undone. Words that this version does not know
/// are shown too.
pub(crate) fn notable_words(impact: &str, risk: &str, class: &str) -> Vec<String> {
    let is_impact_shown = !matches!(impact, "none" | "reload");
    // That a step which stops or reboots a guest is disruptive goes without saying.
    let is_class_shown = class != "benign" && !(class == "disruptive" && is_impact_shown);
    let impact = is_impact_shown.then(|| impact.to_owned());
    let risk = (!matches!(risk, "low" | "medium")).then(|| format!("{risk} risk"));
    let class = is_class_shown.then(|| class.to_owned());
    [impact, risk, class].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use converger_core::desired;
    use converger_core::document::Notation;
    use converger_core::observe;
    use converger_core::plan;
    use converger_core::policy::{Circumstances, Rules};
    use converger_core::safety;

    use super::*;

    /// A plan for this many stopped containers that are declared running, with a description of this length.
    fn judge_starts(count: u32, description: usize, limits: Limits) -> Judged {
        let ids = 100..100 + count;
        let config = format!("config: {{ description: \"{}\" }}", "d".repeat(description));
        let declared = ids.clone().map(|vmid| format!("  - {{ vmid: {vmid}, kind: lxc, name: w-{vmid}, state: running, {config} }}\n"));
        let desired = format!("version: 1\nenvironment: lab\nguests:\n{}", declared.collect::<String>());
        let desired = desired::parse(desired.as_bytes(), Notation::Yaml).expect("declared");
        let row = |vmid: u32| {
            serde_json::json!({
                "vmid": vmid, "kind": "lxc", "name": format!("w-{vmid}"), "node": "pve1", "status": "stopped", "lock": null, "ha": null,
                "template": false, "protection": false, "tags": [], "pending": [], "config": { "description": "old" },
            })
        };
        let reading = serde_json::json!({
            "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
            "nodes": [{ "name": "pve1", "online": true }], "guests": ids.map(row).collect::<Vec<_>>(), "unmanaged": 7,
        });
        let reading = observe::parse(reading.to_string().as_bytes()).expect("observed").into_scoped(&desired.scope());
        let plan = plan::plan(Arc::new(desired), Arc::new(reading), Arc::new(Rules::default()));
        safety::judge(plan, limits, Circumstances::default())
    }

    fn report(judged: &Judged, options: ReportOptions) -> String {
        anstream::adapter::strip_str(&render_report(judged, "limits", options)).to_string()
    }

    #[test]
    fn a_step_is_annotated_only_with_what_a_person_should_notice() {
        assert_eq!(notable_words("none", "medium", "benign"), Vec::<String>::new());
        assert_eq!(notable_words("reload", "low", "benign"), Vec::<String>::new());
        assert_eq!(notable_words("reboot", "medium", "disruptive"), ["reboot"]);
        assert_eq!(notable_words("stop", "high", "disruptive"), ["stop", "high risk"]);
        assert_eq!(notable_words("none", "medium", "disruptive"), ["disruptive"]);
        assert_eq!(notable_words("data-loss", "extreme", "destructive"), ["data-loss", "extreme risk", "destructive"]);
    }

    #[test]
    fn a_change_is_one_line_and_only_verbose_output_has_the_whole_classification() {
        let judged = judge_starts(1, 3, Limits::default());
        let normal = report(&judged, ReportOptions::new(Verbosity::Normal));
        assert!(normal.contains("\n      description: \"old\" -> \"ddd\"\n"), "{normal}");
        assert!(!normal.contains("impact") && !normal.contains("benign"), "{normal}");
        let verbose = report(&judged, ReportOptions::new(Verbosity::Verbose));
        assert!(
            verbose.contains("    start: declared running, observed stopped (impact none, risk medium, benign; needs confirmation)\n"),
            "{verbose}"
        );
    }

    #[test]
    fn a_summary_has_no_zeroes() {
        let judged = judge_starts(2, 3, Limits::default());
        let shown = report(&judged, ReportOptions::new(Verbosity::Normal));
        assert!(shown.ends_with("\nChanges pending: 2 to change in 4 steps, 7 unmanaged\n"), "{shown}");
        assert_eq!(describe_counts(&PlanSummary::default()), "no guests");
    }

    #[test]
    fn quiet_output_has_refusals_and_the_summary_only() {
        let quiet = ReportOptions::new(Verbosity::Quiet);
        assert_eq!(report(&judge_starts(2, 3, Limits::default()), quiet), "Changes pending: 2 to change in 4 steps, 7 unmanaged\n");
        let refused = report(&judge_starts(2, 3, Limits { guests: 1, ..Limits::default() }), quiet);
        let lines: Vec<&str> = refused.lines().collect();
        assert!(lines[0].starts_with("limit-guests: ") && lines[1].starts_with("  remedy: ") && lines.len() == 4, "{refused}");
    }

    #[test]
    fn a_refusal_of_the_whole_run_comes_before_the_guests_and_long_lists_are_cut() {
        let judged = judge_starts(1000, 3, Limits::default());
        let shown = report(&judged, ReportOptions::new(Verbosity::Normal));
        let at = |part: &str| shown.find(part).unwrap_or_else(|| panic!("`{part}` is not in:\n{shown}"));
        assert!(at("limit-guests: ") < at("~ 100 lxc"), "{shown}");
        assert!(shown.contains("\n... and 950 more; --verbose shows all\n"), "{shown}");
        assert!(shown.lines().count() < 220, "{}", shown.lines().count());
        let every = |options| report(&judged, options).lines().filter(|line| line.starts_with("~ ")).count();
        assert_eq!([every(ReportOptions::new(Verbosity::Verbose)), every(ReportOptions::for_question(Verbosity::Quiet))], [1000, 1000]);
    }

    #[test]
    fn a_long_value_is_cut_unless_everything_is_wanted() {
        let judged = judge_starts(1, 8000, Limits::default());
        let shown = report(&judged, ReportOptions::new(Verbosity::Normal));
        assert!(shown.contains("[8000 characters; --verbose shows all]") && shown.len() < 1000, "{shown}");
        for whole in [ReportOptions::new(Verbosity::Verbose), ReportOptions::for_question(Verbosity::Quiet)] {
            assert!(report(&judged, whole).contains(&"d".repeat(8000)));
        }
    }
}

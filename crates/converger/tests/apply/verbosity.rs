//! `--quiet`, and what a person who has to confirm a plan sees in spite of it; digests that confirm nothing.

use std::process::Output;

use crate::stage::{ApplyFixture, STARTS};

fn run(fixture: &ApplyFixture, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = fixture.converger(arguments).output().expect("it starts");
    (status.code(), String::from_utf8(stdout).expect("UTF-8"), String::from_utf8(stderr).expect("UTF-8"))
}

#[test]
fn quiet_audit_and_plan_print_the_summary_only() {
    let fixture = ApplyFixture::new(STARTS);
    let summary = "Changes pending: 2 to change in 2 steps, 1 unmanaged\n".to_owned();
    assert_eq!(run(&fixture, &["audit", "desired.yaml", "--quiet"]), (Some(4), summary.clone(), String::new()));
    assert_eq!(run(&fixture, &["--quiet", "plan", "desired.yaml"]), (Some(4), summary, String::new()));
    let (_, normal, notes) = run(&fixture, &["audit", "desired.yaml"]);
    assert!(normal.contains("~ 101 qemu web-1") && notes.starts_with("read from "), "{normal}{notes}");
}

#[test]
fn quiet_apply_shows_no_progress_and_the_result() {
    let mut fixture =
        ApplyFixture::new("version: 1\nenvironment: lab\nguests:\n  - { vmid: 101, kind: qemu, name: web-1, config: { cores: 3 } }\n");
    let arguments = fixture.confirm_arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["--quiet"]).collect();
    let (code, out, errors) = run(&fixture, &arguments);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{out}");
    assert_eq!(out, "Changes pending: 1 to change in 1 step, 2 unmanaged\n\n1 step: 1 done\n");
    assert_eq!(fixture.take_sent(), ["qemu config"]);
}

#[test]
fn quiet_apply_still_shows_why_it_refuses_and_the_full_digest_to_confirm() {
    let mut fixture = ApplyFixture::new(STARTS);
    let (code, out, errors) = run(&fixture, &["apply", "desired.yaml", "--quiet"]);
    assert_eq!((code, out.as_str()), (Some(3), "Changes pending: 2 to change in 2 steps, 1 unmanaged\n"));
    let digest = &fixture.confirm_arguments()[3];
    assert!(
        errors.contains("approval-missing: ") && errors.contains(&format!("`converger apply desired.yaml --confirm {digest}`")),
        "{errors}"
    );
    assert!(!errors.contains("read from") && !errors.contains("wrote"), "{errors}");
    assert_eq!(fixture.take_sent(), Vec::<String>::new());
}

#[test]
fn the_start_of_a_digest_confirms_nothing() {
    let mut fixture = ApplyFixture::new(STARTS);
    let digest = fixture.confirm_arguments()[3].clone();
    let (missing_intent, short) = (digest["sha256:".len()..].to_owned(), digest["sha256:".len()..][..12].to_owned());
    for (given, what) in
        [(&digest[..19], "only the start of one"), (&*short, "only the start of one"), (&*missing_intent, "one without `sha256:`")]
    {
        let (code, out, errors) = run(&fixture, &["apply", "desired.yaml", "--confirm", given]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{errors}");
        assert!(
            errors.contains("--confirm needs the full digest of the plan") && errors.contains(&format!("`{given}` is {what}")),
            "{errors}"
        );
        assert!(errors.contains("help: `converger plan desired.yaml` prints the full digest"), "{errors}");
    }
    let (_, _, wrote) = run(&fixture, &["plan", "desired.yaml"]);
    assert!(wrote.contains(&format!("wrote plan.json (digest {digest})")), "{wrote}");
    assert_eq!(fixture.take_sent(), Vec::<String>::new());
}

//! Entries of every kind are canonical, bounded and read back unchanged, and nothing else is accepted as an entry.

use super::*;
use crate::apply::{BootId, Fact, Findings, Outcome, Resolution, StoredTextError, TaskId};
use crate::guest::ClusterIdentity;
use crate::testing::{Rng, random_outcome, some_operations};

fn random_digest(rng: &mut Rng) -> Digest {
    Digest::of_bytes(&rng.next_u64().to_be_bytes())
}

fn cluster(rng: &mut Rng) -> ClusterIdentity {
    let pairs: Vec<String> = (0..32).map(|_| format!("{:02X}", rng.below(256))).collect();
    ClusterIdentity::parse(&pairs.join(":")).expect("a fingerprint")
}

fn random_text(rng: &mut Rng) -> Box<str> {
    rng.pick_word(&["ann", "a person", "\u{1b}[2J", "\"quoted\" \\ and \n lines", "名前", "x"]).into()
}

fn random_operation_id(rng: &mut Rng) -> OperationId {
    OperationId::new(&format!("op-{}", rng.below(1000))).expect("an id")
}

fn random_record(rng: &mut Rng, kind: usize, at_ms: u64) -> JournalRecord {
    match kind {
        0 => {
            let seed = rng.next_u64();
            let operations = (seed..).map(|seed| some_operations(&mut Rng::new(seed), "run-1"));
            let mut operations = operations.into_iter().find(|operations| !operations.is_empty()).expect("one of many plans has a step");
            JournalRecord::Intent { operation: Box::new(operations.swap_remove(0)), at_ms }
        }
        1 => JournalRecord::Sending { id: random_operation_id(rng), at_ms, up_ms: rng.below(1 << 40) },
        2 => JournalRecord::TaskStarted {
            id: random_operation_id(rng),
            task: TaskId::new("UPID:pve1:0:0:0:qmstart:100:root@pam:").expect("a task"),
            at_ms,
        },
        3 => JournalRecord::Ended { id: random_operation_id(rng), outcome: random_outcome(rng), at_ms },
        _ => JournalRecord::Resolved {
            id: random_operation_id(rng),
            resolution: *rng.pick(&Resolution::ALL).expect("one"),
            by: random_text(rng),
            reason: random_text(rng),
            at_ms,
        },
    }
}

/// A random entry that starts an epoch: a resync, or a restore.
fn random_epoch_start(rng: &mut Rng, kind: usize, at_ms: u64) -> LedgerEntry {
    let (by, reason, size, epoch) = (random_text(rng), random_text(rng), rng.below(1 << 40), rng.below(1 << 40));
    let root = rng.one_in(2).then(|| random_text(rng));
    match kind {
        17 => LedgerEntry::Resync { by, reason, size, root, epoch, at_ms },
        _ => LedgerEntry::Restored { by, reason, size, root, epoch, at_ms },
    }
}

/// A random entry of the kind with this index.
fn random_entry(rng: &mut Rng, kind: usize) -> LedgerEntry {
    let at_ms = rng.below(1 << 45);
    let run = RunId::new("run-1").expect("an id");
    let environment = EnvironmentName::new("lab").expect("a name");
    let guest = Vmid::new(100 + rng.below(900)).expect("an id");
    let slug = |text: &str| Slug::new(text).expect("a word");
    match kind {
        0 => LedgerEntry::Key { verifier: random_text(rng), at_ms },
        1 => {
            let (plan, by, boot) = (random_digest(rng), random_text(rng), rng.one_in(2).then(|| BootId::new("boot-1").expect("an id")));
            let (config, intent, observation, rules, catalogue) =
                (random_digest(rng), random_digest(rng), random_digest(rng), random_digest(rng), random_digest(rng));
            let inputs = DecisionInputs { program: "0.1.0".into(), planner: 1, config, intent, observation, rules, catalogue };
            LedgerEntry::RunStarted { run: RunStart { id: run, environment, plan, by, at_ms, boot }, inputs }
        }
        2 => LedgerEntry::PlanMade { run, plan: random_digest(rng), proposal: random_digest(rng), judgement: random_digest(rng), at_ms },
        3 => {
            let evidence = Evidence::default().with("cause", "node-offline").with("count", rng.below(9));
            LedgerEntry::Refused {
                run,
                guest: rng.one_in(2).then_some(guest),
                stage: slug("plan"),
                code: slug("guest-unknown"),
                evidence,
                at_ms,
            }
        }
        4 => {
            let names = (0..rng.below(3)).map(|_| random_text(rng)).collect();
            LedgerEntry::Approved { run, proposal: random_digest(rng), by: random_text(rng), how: slug("typed"), names, at_ms }
        }
        5 => LedgerEntry::Admitted { run, plan: random_digest(rng), bundle: random_digest(rng), answer: slug("admitted"), at_ms },
        6 => LedgerEntry::Recovery { environment, operations: (0..rng.below(4)).map(|_| random_operation_id(rng)).collect(), at_ms },
        7..=11 => LedgerEntry::Record(random_record(rng, kind - 7, at_ms)),
        12 => LedgerEntry::RunEnded { run, end: *rng.pick(&OperationEnd::ALL).expect("one"), at_ms },
        13 => LedgerEntry::Hold(Hold { environment, vmid: guest, by: random_text(rng), reason: random_text(rng), at_ms }),
        14 => LedgerEntry::Release { environment, guest, by: random_text(rng), at_ms },
        15 => LedgerEntry::Freeze(Freeze { environment, by: random_text(rng), reason: random_text(rng), at_ms }),
        16 => LedgerEntry::Thaw { environment, by: random_text(rng), at_ms },
        17 | 22 => random_epoch_start(rng, kind, at_ms),
        19 => LedgerEntry::Rekeyed {
            verifier: random_text(rng),
            previous: random_text(rng),
            checkpoint: (rng.below(2) == 0).then(|| random_text(rng)),
            by: random_text(rng),
            reason: random_text(rng),
            at_ms,
        },
        20 => LedgerEntry::Binding(EnvironmentBinding { environment, cluster: cluster(rng), by: random_text(rng), at_ms }),
        21 => {
            let to = EnvironmentName::new("lab-2").expect("a name");
            LedgerEntry::Rename(EnvironmentRename { from: environment, to, by: random_text(rng), reason: random_text(rng), at_ms })
        }
        _ => {
            let digests = (0..rng.below(4)).map(|_| random_digest(rng)).collect();
            LedgerEntry::Pruned { by: random_text(rng), before_ms: rng.below(1 << 45), digests, at_ms }
        }
    }
}

#[test]
fn entries_of_every_kind_are_canonical_and_read_back_unchanged() {
    let mut rng = Rng::new(5);
    for (number, kind) in ENTRY_KINDS.iter().enumerate() {
        for case in 0..60 {
            let entry = random_entry(&mut rng, number);
            assert_eq!(entry.kind(), *kind);
            let bytes = write_entry(&entry).expect("serialises");
            assert!(bytes.len() <= ENTRY_BYTES_MAX);
            assert_eq!(parse_entry(&bytes).as_ref(), Ok(&entry), "{kind} {case}: {}", String::from_utf8_lossy(&bytes));
            let tree: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
            assert_eq!(serde_json_canonicalizer::to_vec(&tree).expect("canonical"), bytes, "{kind} {case}");
        }
    }
}

#[test]
fn entry_format_is_pinned() {
    let environment = EnvironmentName::new("lab").expect("a name");
    let hold = Hold { environment, vmid: Vmid::new(100).expect("an id"), by: "ann".into(), reason: "disk".into(), at_ms: 7 };
    let text =
        r#"{"at_ms":7,"kind":"hold","schema":"converger.entry/1","what":{"by":"ann","environment":"lab","guest":100,"reason":"disk"}}"#;
    assert_eq!(write_entry(&LedgerEntry::Hold(hold)).expect("serialises"), text.as_bytes());
    let (environment, to) = (EnvironmentName::new("lab").expect("a name"), EnvironmentName::new("lab-2").expect("a name"));
    let cluster = ClusterIdentity::parse(&["AB"; 32].join(":")).expect("a fingerprint");
    let binding = EnvironmentBinding { environment: environment.clone(), cluster, by: "ann".into(), at_ms: 7 };
    let text = format!(
        r#"{{"at_ms":7,"kind":"binding","schema":"converger.entry/1","what":{{"by":"ann","cluster":"{}","environment":"lab"}}}}"#,
        binding.cluster
    );
    assert_eq!(write_entry(&LedgerEntry::Binding(binding)).expect("serialises"), text.as_bytes());
    let rename = EnvironmentRename { from: environment, to, by: "ann".into(), reason: "moved".into(), at_ms: 7 };
    let text =
        r#"{"at_ms":7,"kind":"rename","schema":"converger.entry/1","what":{"by":"ann","environment":"lab","reason":"moved","to":"lab-2"}}"#;
    assert_eq!(write_entry(&LedgerEntry::Rename(rename)).expect("serialises"), text.as_bytes());
}

#[test]
fn rejects_entries_that_are_not_canonical() {
    let good = r#"{"at_ms":7,"kind":"thaw","schema":"converger.entry/1","what":{"by":"ann","environment":"lab"}}"#;
    assert!(parse_entry(good.as_bytes()).is_ok());
    let blank = good.replacen(":7,", ": 7,", 1);
    let order = r#"{"kind":"thaw","at_ms":7,"schema":"converger.entry/1","what":{"by":"ann","environment":"lab"}}"#;
    let more = good.replacen("}}", ",\"reason\":\"x\"}}", 1);
    let escaped = good.replacen("ann", "\\u0061nn", 1);
    for text in [blank.as_str(), order, &more, &escaped] {
        assert_eq!(parse_entry(text.as_bytes()), Err(StoredTextError::NotCanonical), "{text}");
    }
    let incomplete = good.replacen("\"by\":\"ann\",", "", 1);
    let unknown = good.replacen("thaw", "melt", 1);
    let duplicate = good.replacen("\"by\":\"ann\"", "\"by\":\"ann\",\"by\":\"bob\"", 1);
    for text in ["", "{}", "null", &incomplete, &unknown, &duplicate] {
        assert!(matches!(parse_entry(text.as_bytes()), Err(StoredTextError::Invalid(_))), "{text}");
    }
    let newer = good.replacen("entry/1", "entry/2", 1);
    assert!(matches!(parse_entry(newer.as_bytes()), Err(StoredTextError::OtherSchema { .. })), "{newer}");
}

/// Changing any byte of an entry changes its meaning or makes it invalid.
#[test]
fn changing_a_byte_gives_another_entry_or_an_error() {
    let mut rng = Rng::new(9);
    for number in 0..ENTRY_KINDS.len() {
        let entry = random_entry(&mut rng, number);
        let bytes = write_entry(&entry).expect("serialises");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << rng.below(8);
            assert_ne!(parse_entry(&changed).as_ref(), Ok(&entry), "byte {at} of {}", String::from_utf8_lossy(&bytes));
        }
    }
}

/// A number that is used twice would make plans and approvals of a time line that was given up valid again.
#[test]
fn an_epoch_follows_only_an_earlier_one() {
    let entry = |is_restore: bool, epoch: u64| {
        let (by, reason, size, root, at_ms) = ("ann".into(), "the disk was lost".into(), 3, None, 7);
        if is_restore {
            LedgerEntry::Restored { by, reason, size, root, epoch, at_ms }
        } else {
            LedgerEntry::Resync { by, reason, size, root, epoch, at_ms }
        }
    };
    let mut replay = LedgerReplay::default();
    assert_eq!(replay.epoch(), 1);
    // (whether it is a restore, the epoch of the entry, the epoch after it)
    let cases =
        [(false, 1, 1), (true, 1, 1), (false, 3, 1), (true, 0, 1), (false, 2, 2), (false, 2, 2), (true, 2, 2), (true, 6, 6), (false, 8, 6)];
    for (is_restore, epoch, after) in cases {
        let before = replay.epoch();
        let expected = if before == after { Err(MisplacedEntry::Epoch { now: before, epoch }) } else { Ok(()) };
        assert_eq!((replay.apply_entry(entry(is_restore, epoch)), replay.epoch()), (expected, after), "{is_restore} {epoch}");
    }
}

#[test]
fn largest_prune_entry_fits() {
    let mut rng = Rng::new(11);
    let digests = (0..PRUNED_DIGESTS_MAX).map(|_| random_digest(&mut rng)).collect();
    let entry = LedgerEntry::Pruned { by: "\u{1}".repeat(4096).into(), before_ms: u64::MAX >> 11, digests, at_ms: u64::MAX >> 11 };
    assert!(write_bounded_entry(&entry).expect("serialises").is_some());
}

/// The end of an operation is recorded even if the environment said very much about it.
#[test]
fn outcome_entry_fits_whatever_its_evidence() {
    let words = |letter: &str| Fact::Words((0..100).map(|_| letter.repeat(500).into()).collect());
    for letter in ["\u{1}", "\"", "a", "é", "𝄞"] {
        let full = (0..20)
            .fold(Evidence::default(), |all, number| all.with(&format!("said-{number}"), words(letter)).with(&format!("x-{number}"), "x"));
        assert!(full.iter().any(|(_, fact)| matches!(fact, Fact::Text(text) if text.ends_with("bytes left out"))), "{letter}");
        let findings = Findings { evidence: full.clone(), observed: full };
        let outcome = Outcome::new_failed(crate::failure::FailureCode::TaskFailed, findings);
        let entry = LedgerEntry::Record(JournalRecord::Ended { id: OperationId::new("op-1").expect("an id"), outcome, at_ms: 1 });
        let bytes = write_bounded_entry(&entry).expect("serialises").expect("it fits");
        assert_eq!(parse_entry(&bytes), Ok(entry), "{letter}");
    }
}

/// What a person typed is not shortened, because they would not recognise it.
#[test]
fn refuses_approval_entry_that_is_too_long() {
    let names = (0..40).map(|_| "\u{1}".repeat(4000).into()).collect();
    let (run, how) = (RunId::new("run-1").expect("an id"), Slug::new("typed").expect("a word"));
    let approved = LedgerEntry::Approved { run, proposal: Digest::of_bytes(b""), by: "ann".into(), how, names, at_ms: 1 };
    assert_eq!(write_bounded_entry(&approved).expect("serialises"), None);
}

//! Entries of every kind are canonical, short, read back exactly, and nothing else is read as one.

use super::*;
use crate::apply::{BootId, Fact, Findings, Malformed, Outcome, Resolution, TaskId};
use crate::guest::ClusterIdentity;
use crate::testing::{Rng, outcome, some_operations};

fn digest(rng: &mut Rng) -> Digest {
    Digest::of_bytes(&rng.next_u64().to_be_bytes())
}

fn cluster(rng: &mut Rng) -> ClusterIdentity {
    let pairs: Vec<String> = (0..32).map(|_| format!("{:02X}", rng.below(256))).collect();
    ClusterIdentity::parse(&pairs.join(":")).expect("a fingerprint")
}

fn text(rng: &mut Rng) -> Box<str> {
    rng.word(&["ann", "a person", "\u{1b}[2J", "\"quoted\" \\ and \n lines", "名前", "x"]).into()
}

fn id(rng: &mut Rng) -> OperationId {
    OperationId::new(&format!("op-{}", rng.below(1000))).expect("an id")
}

fn record(rng: &mut Rng, kind: usize, at_ms: u64) -> Record {
    match kind {
        0 => {
            let seed = rng.next_u64();
            let operations = (seed..).map(|seed| some_operations(&mut Rng::new(seed), "run-1"));
            let mut operations = operations.into_iter().find(|operations| !operations.is_empty()).expect("one of many plans has a step");
            Record::Intent { operation: Box::new(operations.swap_remove(0)), at_ms }
        }
        1 => Record::Sending { id: id(rng), at_ms, up_ms: rng.below(1 << 40) },
        2 => Record::Tasked { id: id(rng), task: TaskId::new("UPID:pve1:0:0:0:qmstart:100:root@pam:").expect("a task"), at_ms },
        3 => Record::Ended { id: id(rng), outcome: outcome(rng), at_ms },
        _ => {
            Record::Resolved { id: id(rng), resolution: *rng.pick(&Resolution::ALL).expect("one"), by: text(rng), reason: text(rng), at_ms }
        }
    }
}

/// An entry of the kind with this number.
fn entry(rng: &mut Rng, kind: usize) -> Entry {
    let at_ms = rng.below(1 << 45);
    let run = RunId::new("run-1").expect("an id");
    let environment = EnvironmentName::new("lab").expect("a name");
    let guest = Vmid::new(100 + rng.below(900)).expect("an id");
    let word = |text: &str| Word::new(text).expect("a word");
    match kind {
        0 => Entry::Key { verifier: text(rng), at_ms },
        1 => {
            let (plan, by, boot) = (digest(rng), text(rng), rng.one_in(2).then(|| BootId::new("boot-1").expect("an id")));
            let (config, desired, observation, rules, catalogue) = (digest(rng), digest(rng), digest(rng), digest(rng), digest(rng));
            let inputs = Inputs { program: "0.1.0".into(), planner: 1, config, desired, observation, rules, catalogue };
            Entry::RunStarted { run: Run { id: run, environment, plan, by, at_ms, boot }, inputs }
        }
        2 => Entry::PlanMade { run, plan: digest(rng), judgement: digest(rng), at_ms },
        3 => {
            let evidence = Evidence::default().with("cause", "node-offline").with("count", rng.below(9));
            Entry::Refused { run, guest: rng.one_in(2).then_some(guest), stage: word("plan"), code: word("guest-unknown"), evidence, at_ms }
        }
        4 => {
            let names = (0..rng.below(3)).map(|_| text(rng)).collect();
            Entry::Approved { run, plan: digest(rng), by: text(rng), how: word("typed"), names, at_ms }
        }
        5 => Entry::Admitted { run, plan: digest(rng), bundle: digest(rng), answer: word("admitted"), at_ms },
        6 => Entry::Recovery { environment, operations: (0..rng.below(4)).map(|_| id(rng)).collect(), at_ms },
        7..=11 => Entry::Record(record(rng, kind - 7, at_ms)),
        12 => Entry::RunEnded { run, end: *rng.pick(&End::ALL).expect("one"), at_ms },
        13 => Entry::Hold(Hold { environment, vmid: guest, by: text(rng), reason: text(rng), at_ms }),
        14 => Entry::Release { environment, guest, by: text(rng), at_ms },
        15 => Entry::Freeze(Freeze { environment, by: text(rng), reason: text(rng), at_ms }),
        16 => Entry::Thaw { environment, by: text(rng), at_ms },
        17 => Entry::Resync {
            by: text(rng),
            reason: text(rng),
            size: rng.below(1 << 40),
            root: (rng.below(2) == 0).then(|| text(rng)),
            at_ms,
        },
        19 => Entry::Rekeyed {
            verifier: text(rng),
            previous: text(rng),
            checkpoint: (rng.below(2) == 0).then(|| text(rng)),
            by: text(rng),
            reason: text(rng),
            at_ms,
        },
        20 => Entry::Binding(EnvironmentBinding { environment, cluster: cluster(rng), by: text(rng), at_ms }),
        21 => {
            let to = EnvironmentName::new("lab-2").expect("a name");
            Entry::Rename(EnvironmentRename { from: environment, to, by: text(rng), reason: text(rng), at_ms })
        }
        _ => {
            let digests = (0..rng.below(4)).map(|_| digest(rng)).collect();
            Entry::Pruned { by: text(rng), before_ms: rng.below(1 << 45), digests, at_ms }
        }
    }
}

#[test]
fn entries_of_every_kind_are_canonical_and_read_back_as_they_were() {
    let mut rng = Rng::new(5);
    for (number, kind) in KINDS.iter().enumerate() {
        for case in 0..60 {
            let entry = entry(&mut rng, number);
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
fn the_form_of_an_entry_is_pinned() {
    let environment = EnvironmentName::new("lab").expect("a name");
    let hold = Hold { environment, vmid: Vmid::new(100).expect("an id"), by: "ann".into(), reason: "disk".into(), at_ms: 7 };
    let text =
        r#"{"at_ms":7,"kind":"hold","schema":"converger.entry/1","what":{"by":"ann","environment":"lab","guest":100,"reason":"disk"}}"#;
    assert_eq!(write_entry(&Entry::Hold(hold)).expect("serialises"), text.as_bytes());
    let (environment, to) = (EnvironmentName::new("lab").expect("a name"), EnvironmentName::new("lab-2").expect("a name"));
    let cluster = ClusterIdentity::parse(&["AB"; 32].join(":")).expect("a fingerprint");
    let binding = EnvironmentBinding { environment: environment.clone(), cluster, by: "ann".into(), at_ms: 7 };
    let text = format!(
        r#"{{"at_ms":7,"kind":"binding","schema":"converger.entry/1","what":{{"by":"ann","cluster":"{}","environment":"lab"}}}}"#,
        binding.cluster
    );
    assert_eq!(write_entry(&Entry::Binding(binding)).expect("serialises"), text.as_bytes());
    let rename = EnvironmentRename { from: environment, to, by: "ann".into(), reason: "moved".into(), at_ms: 7 };
    let text =
        r#"{"at_ms":7,"kind":"rename","schema":"converger.entry/1","what":{"by":"ann","environment":"lab","reason":"moved","to":"lab-2"}}"#;
    assert_eq!(write_entry(&Entry::Rename(rename)).expect("serialises"), text.as_bytes());
}

#[test]
fn what_says_the_same_in_another_form_is_no_entry() {
    let good = r#"{"at_ms":7,"kind":"thaw","schema":"converger.entry/1","what":{"by":"ann","environment":"lab"}}"#;
    assert!(parse_entry(good.as_bytes()).is_ok());
    let blank = good.replacen(":7,", ": 7,", 1);
    let order = r#"{"kind":"thaw","at_ms":7,"schema":"converger.entry/1","what":{"by":"ann","environment":"lab"}}"#;
    let more = good.replacen("}}", ",\"reason\":\"x\"}}", 1);
    let escaped = good.replacen("ann", "\\u0061nn", 1);
    for text in [blank.as_str(), order, &more, &escaped] {
        assert_eq!(parse_entry(text.as_bytes()), Err(Malformed::OtherForm), "{text}");
    }
    let lacks = good.replacen("\"by\":\"ann\",", "", 1);
    let unknown = good.replacen("thaw", "melt", 1);
    let twice = good.replacen("\"by\":\"ann\"", "\"by\":\"ann\",\"by\":\"bob\"", 1);
    for text in ["", "{}", "null", &lacks, &unknown, &twice] {
        assert!(matches!(parse_entry(text.as_bytes()), Err(Malformed::Faults(_))), "{text}");
    }
    let newer = good.replacen("entry/1", "entry/2", 1);
    assert!(matches!(parse_entry(newer.as_bytes()), Err(Malformed::OtherSchema { .. })), "{newer}");
}

/// No byte of an entry can be changed so that it still says the same.
#[test]
fn a_changed_byte_is_another_entry_or_none() {
    let mut rng = Rng::new(9);
    for number in 0..KINDS.len() {
        let entry = entry(&mut rng, number);
        let bytes = write_entry(&entry).expect("serialises");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << rng.below(8);
            assert_ne!(parse_entry(&changed).as_ref(), Ok(&entry), "byte {at} of {}", String::from_utf8_lossy(&bytes));
        }
    }
}

#[test]
fn as_many_digests_as_one_entry_names_fit_into_it() {
    let mut rng = Rng::new(11);
    let digests = (0..PRUNED_MAX).map(|_| digest(&mut rng)).collect();
    let entry = Entry::Pruned { by: "\u{1}".repeat(4096).into(), before_ms: u64::MAX >> 11, digests, at_ms: u64::MAX >> 11 };
    assert!(write_fitting(&entry).expect("serialises").is_some());
}

/// How something ended is kept, however much others said about it: there is room for it in every entry.
#[test]
fn whatever_others_said_the_end_of_an_operation_is_an_entry() {
    let words = |letter: &str| Fact::Words((0..100).map(|_| letter.repeat(500).into()).collect());
    for letter in ["\u{1}", "\"", "a", "é", "𝄞"] {
        let full = (0..20)
            .fold(Evidence::default(), |all, number| all.with(&format!("said-{number}"), words(letter)).with(&format!("x-{number}"), "x"));
        assert!(full.iter().any(|(_, fact)| matches!(fact, Fact::Text(text) if text.ends_with("bytes left out"))), "{letter}");
        let findings = Findings { evidence: full.clone(), observed: full };
        let outcome = Outcome::failed(crate::failure::Code::TaskFailed, findings);
        let entry = Entry::Record(Record::Ended { id: OperationId::new("op-1").expect("an id"), outcome, at_ms: 1 });
        let bytes = write_fitting(&entry).expect("serialises").expect("it fits");
        assert_eq!(parse_entry(&bytes), Ok(entry), "{letter}");
    }
}

/// What a person said is not shortened: they would not recognise it.
#[test]
fn what_a_person_said_at_too_great_length_is_no_entry() {
    let names = (0..40).map(|_| "\u{1}".repeat(4000).into()).collect();
    let (run, how) = (RunId::new("run-1").expect("an id"), Word::new("typed").expect("a word"));
    let approved = Entry::Approved { run, plan: Digest::of_bytes(b""), by: "ann".into(), how, names, at_ms: 1 };
    assert_eq!(write_fitting(&approved).expect("serialises"), None);
}

//! A new configuration: used from the next run on, or refused while the old one stays in force.

use converger_core::approve::ApprovalMode;
use converger_engine::schedule::ConcurrencyLimits;
use converger_runtime::{Question, RunAdmission};

use super::*;

#[test]
fn reload_is_used_from_the_next_run_on_and_open_runs_keep_their_configuration() {
    block(async {
        let stage = Stage::start(100);
        let state = stage.state().await;
        let environment = stage.open_ready(&state);
        let before = start_run(&environment, CORES_102).await.expect("it starts");
        let limits = "[apply]\nat_once_per_node = 1\nat_once = 2\n[environments.lab]\nmode = \"shared\"";
        environment.reload(stage.config(&[("[environments.lab]\nmode = \"solo\"", limits)])).expect("it can be used");
        let after = start_run(&environment, CORES_102).await.expect("it starts");
        assert_eq!((before.mode(), after.mode()), (ApprovalMode::Solo, ApprovalMode::Shared));
        assert!(matches!(before.question(), Question::Confirm { .. }) && after.question() == Question::AnotherPerson);
        for (run, expected) in [(before, ConcurrencyLimits::default()), (after, ConcurrencyLimits { per_node: 1, overall: 2 })] {
            let RunAdmission::Ended(report) = run.admit(Confirmation::None).await else { panic!("nobody confirmed it") };
            assert_eq!(report.at_once, expected);
        }
    });
}

#[test]
fn reload_refuses_an_unusable_configuration_and_keeps_the_old_one() {
    block(async {
        let stage = Stage::start(100);
        let state = stage.state().await;
        let environment = stage.open_ready(&state);
        let cases = [
            (("mode = \"solo\"\n", ""), "environment `lab` has no approval mode"),
            (("[environments.lab]", "[store]\ndirectory = \"/srv/other\"\n[environments.lab]"), "it changes `directory` in `[store]`"),
            (("[environments.lab]", "[ledger]\nwitness = \"/srv/witness\"\n[environments.lab]"), "it changes `witness` in `[ledger]`"),
            (("clock = \"requests\"\n", ""), "it changes the clock of the environment"),
        ];
        for (replacement, part) in cases {
            let error = environment.reload(stage.config(&[replacement])).expect_err(part);
            assert!(matches!(error, RuntimeError::Input(_)) && error.to_string().contains(part), "{error}");
            assert!(error.fault().and_then(|fault| fault.help()).is_some(), "{error}");
        }
        let run = start_run(&environment, CORES_102).await.expect("it starts");
        assert_eq!(run.mode(), ApprovalMode::Solo);
    });
}

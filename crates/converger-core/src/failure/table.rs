//! The table of failure codes: what each means and what to do about it. `explain` and the reference print it.

use super::Code;

/// What there is to know about a code.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The code.
    pub code: Code,
    /// Its word.
    pub word: &'static str,
    /// What happened, as the beginning of a sentence without a stop.
    pub title: &'static str,
    /// When it is given and why.
    pub meaning: &'static str,
    /// What makes it go away.
    pub remedy: &'static str,
}

/// Stands in for a code that the table lost; a test shows that there is none.
pub(super) static LOST: Entry = entry(Code::EnvironmentUnreadable, "lost-code", "", "", "");

const fn entry(code: Code, word: &'static str, title: &'static str, meaning: &'static str, remedy: &'static str) -> Entry {
    Entry { code, word, title, meaning, remedy }
}

/// All codes, in the order of [`Code`].
pub static TABLE: [Entry; 43] = [
    entry(
        Code::ClientSetup,
        "client-setup",
        "the connection cannot be made ready on this machine",
        "Before anybody is asked, the authorities that are trusted, the token with its secret, and this machine's network and TLS must be ready. One of them is not, so that nothing was read and nothing was sent.",
        "Mend what the message names: the file in `ca`, the id in `token`, where `secret` is and what is there, or the limits of this process, such as that of open files.",
    ),
    entry(
        Code::EndpointUnreachable,
        "endpoint-unreachable",
        "no endpoint of the environment answers",
        "There was no connection to any of the addresses in converger.toml, so that nothing was read and nothing was sent.",
        "Check the address and the port (8006), that pveproxy runs on the node, and what is between here and there; `converger doctor` asks each endpoint.",
    ),
    entry(
        Code::CertificateUntrusted,
        "certificate-untrusted",
        "the endpoint's certificate is from nobody who is trusted",
        "TLS stands on somebody who vouches for the certificate. Neither the system's authorities nor those of `ca` do, or the handshake was not signed with the certificate's key. Verification cannot be switched off.",
        "Name the cluster's own authority with `ca` (/etc/pve/pve-root-ca.pem on a node), or compare the fingerprint with `pvenode cert info` on the node itself and pin it with `fingerprints`.",
    ),
    entry(
        Code::CertificateExpired,
        "certificate-expired",
        "the endpoint's certificate is not valid at this time",
        "The certificate has run out, or begins later than the clock of this machine says.",
        "Renew it on the node (`pvecm updatecerts --force`, or the ACME order), or set the clock of the machine that is wrong.",
    ),
    entry(
        Code::CertificateOtherName,
        "certificate-other-name",
        "the endpoint's certificate is for another name",
        "The name in `url` is none of those that the certificate was made for, so that another machine could be meant.",
        "Use a name in `url` that the certificate is for, or compare the fingerprint with `pvenode cert info` on the node itself and pin it with `fingerprints`.",
    ),
    entry(
        Code::PinMismatch,
        "pin-mismatch",
        "the endpoint's certificate is none of those that are pinned",
        "Fingerprints are pinned in converger.toml, and what answers shows another certificate: it was renewed, or somebody else answers.",
        "Compare the fingerprint with `pvenode cert info` on the node itself, and only then add it to `fingerprints`.",
    ),
    entry(
        Code::TokenRejected,
        "token-rejected",
        "the API token was not accepted",
        "Proxmox does not know the token, its secret is another one, or the token or its user has expired or is disabled. Proxmox does not say which.",
        "Compare `token` with `pveum user token list <user>`, and make a new secret where in doubt.",
    ),
    entry(
        Code::TokenForbidden,
        "token-forbidden",
        "the API token may not read the cluster",
        "The state of the cluster and the list of guests are what every decision rests on, and the token lacks the privilege for it.",
        "Grant it the role PVEAuditor on `/`; `converger doctor` prints the very lines, also for what each verb needs.",
    ),
    entry(
        Code::Redirected,
        "redirected",
        "the server sends us elsewhere",
        "Redirects are not followed: a token must not travel to an address that nobody wrote down.",
        "Write the address of the API itself into `url`: https, the node's name, port 8006.",
    ),
    entry(
        Code::NotProxmox,
        "not-proxmox",
        "what answers does not speak as Proxmox VE does",
        "The answer is no JSON of Proxmox VE's API: a web page, a proxy's error, or another program.",
        "Open the address in a browser: it must be Proxmox VE's own, and no proxy in between may answer for it.",
    ),
    entry(
        Code::AnswerCompressed,
        "answer-compressed",
        "the answer is compressed, which was not asked for",
        "Compressed answers are never asked for, because a few bytes can unpack to more than a machine holds. Whoever sends one does not behave as Proxmox does.",
        "Look for a proxy between here and the node, and name the node's own address.",
    ),
    entry(
        Code::AnswerTooLarge,
        "answer-too-large",
        "the answer is larger than anything that is read",
        "A list of ten thousand guests takes a few mebibytes. What is far beyond that is not read to its end.",
        "Check what is behind the address.",
    ),
    entry(
        Code::AnswerTooSlow,
        "answer-too-slow",
        "the answer did not come in time",
        "An answer must be whole within `timeout` (60 s where nothing is said), however slowly it drips.",
        "Look at the load of the node and at pvedaemon and pveproxy there; raise `timeout` where the cluster is just slow.",
    ),
    entry(
        Code::AnswerInterrupted,
        "answer-interrupted",
        "the connection broke before the answer was whole",
        "What arrived of an answer is not used: half a list looks like a list.",
        "Run it again; if it stays so, look at pveproxy on the node and at what is in between.",
    ),
    entry(
        Code::ReadingTooLarge,
        "reading-too-large",
        "the answers of one reading are together larger than is read",
        "Each answer is within its bound, and all of them together are beyond `reading_mib` (512 where nothing is said): ten thousand guests in full take a tenth of that. No half of a reading is used.",
        "Check what is behind the address. Where the environment is just large, raise `reading_mib`, or declare its guests in several files.",
    ),
    entry(
        Code::ReadingTooSlow,
        "reading-too-slow",
        "one reading takes longer than is waited",
        "Each answer came in time, and all of them together took longer than `reading_timeout` (900 s where nothing is said). What was read first would be too old to be trusted. No half of a reading is used.",
        "Look at the load of the nodes. Where the environment is just slow, raise `reading_timeout`, or declare its guests in several files.",
    ),
    entry(
        Code::ClusterDown,
        "cluster-down",
        "the node cannot say anything about its cluster",
        "The cluster's file system (pmxcfs) does not run on the node, so that it knows neither guests nor users.",
        "Look at `systemctl status pve-cluster` on the node, or ask another node.",
    ),
    entry(
        Code::OtherCluster,
        "other-cluster",
        "another cluster answered",
        "The name of the cluster is pinned in converger.toml, and who answers belongs to another one.",
        "Check `url`; if the cluster was renamed on purpose, change `cluster`.",
    ),
    entry(
        Code::EnvironmentUnreadable,
        "environment-unreadable",
        "the environment could not be read",
        "A reading that everything else rests on failed in a way that has no code of its own; the message has the words of Proxmox.",
        "Read what Proxmox said, and look at the node.",
    ),
    entry(
        Code::NotDelivered,
        "not-delivered",
        "the change did not reach the environment",
        "Nobody took the request on, so that nothing was changed. It is not sent a second time by itself.",
        "Resolve the cause in the evidence, then apply again.",
    ),
    entry(
        Code::ChangeRejected,
        "change-rejected",
        "the environment decided against the change",
        "Proxmox answered no before it changed anything; the evidence has its words.",
        "Read what Proxmox said; grant what the token lacks, or correct the declared value, then apply again.",
    ),
    entry(
        Code::TaskFailed,
        "task-failed",
        "the task that was to do it ended with an error",
        "Proxmox took the change on, its task ended with an error, and the guest is not as wanted.",
        "Read the task's words in the evidence and its log on the node, then apply again.",
    ),
    entry(
        Code::PromiseBroken,
        "promise-broken",
        "the guest is not as it should be after the change",
        "The change was carried out as far as Proxmox says, but what was read afterwards is not what was promised.",
        "Compare what was observed with what was wanted; something else may change the guest at the same time.",
    ),
    entry(
        Code::NotCarriedOut,
        "not-carried-out",
        "nothing shows that the change was carried out",
        "Its answer was lost, or the program ended before it came. No task of it was found and the guest is not as wanted, although it was looked for several times. It is not sent a second time by itself.",
        "Apply again: the new plan starts from what the guest is now.",
    ),
    entry(
        Code::ShutdownTimeout,
        "shutdown-timeout",
        "the guest did not go down in the time that it was given",
        "A graceful shutdown is never followed by a hard stop. The request stays with the guest, which may still go down.",
        "Look into the guest. It is read again at the next run; give it more time with `stop_timeout`, or declare `stop: hard`.",
    ),
    entry(
        Code::TaskOverdue,
        "task-overdue",
        "the task is still at work after the time that is waited",
        "Nothing is done to the guest while its task may still act.",
        "Look at the task on the node. It is read again at the next run, and released once it has ended.",
    ),
    entry(
        Code::TaskAtWork,
        "task-at-work",
        "the task of an earlier run is still at work",
        "An apply looks first at what earlier ones left, and waits for none of it: the task in the evidence was begun by this program and has not ended. Nothing else is done to the guest while it may still act; others go on.",
        "Let the task end, then apply again: it is read once more, and the guest is released. If it never ends, look at it on its node.",
    ),
    entry(
        Code::TaskLost,
        "task-lost",
        "nobody knows how the task ended",
        "The task was killed, its node went down, or its log is gone, and what was read does not settle it.",
        "Look at the guest and at the node's log. What is held is read again at the next run, or settled by `converger ops resolve`.",
    ),
    entry(
        Code::OutcomeUnread,
        "outcome-unread",
        "what became of the change cannot be read at the moment",
        "The change was sent, and then the guest or its node did not answer, or the run was left. The guest is left alone until it can be read.",
        "Resolve the cause in the evidence, such as a node that is silent or a right that was taken; the next run reads it and goes on from there.",
    ),
    entry(
        Code::OutcomeUnclear,
        "outcome-unclear",
        "what became of the change cannot be told",
        "What was read allows for more than one story, so that a person has to look.",
        "Where the evidence says until when it may come, apply again after that; otherwise look at the guest and its tasks, then say what became of it with `converger ops resolve`.",
    ),
    entry(
        Code::JournalUnwritable,
        "journal-unwritable",
        "the journal cannot be written",
        "Nothing is changed that was not written down before. What was under way is found out by reading at the next start. The evidence says whether the file could not be written, or whether the journal turned a record down because it has something else than this run wrote.",
        "Make the state directory writable, with room on its disk. If a record was turned down, see to it that nobody restores or replaces the store during a run. Then run it again.",
    ),
    entry(
        Code::JournalUnreadable,
        "journal-unreadable",
        "what the journal remembers cannot be read",
        "A freeze, guests that people hold and operations that are held are kept in the store. Where it cannot be read, whether there are any is not known, and nothing is planned as if there were none.",
        "Do what the message says, such as letting this user read the state directory, or restoring the store from a backup. Where there never was one, name another state directory.",
    ),
    entry(
        Code::LaneHalted,
        "lane-halted",
        "an earlier step of the guest did not end well",
        "The steps of a guest stand on each other, so that the rest of them was not begun.",
        "Resolve what the earlier step says, then apply again.",
    ),
    entry(
        Code::DependencyNotDone,
        "dependency-not-done",
        "a step of another guest that must come first did not end well",
        "The guest waits for others by `after`, and one of them did not get there, so that the step was not begun.",
        "Resolve what the steps of the guests in the evidence say, then apply again.",
    ),
    entry(
        Code::RunStopped,
        "run-stopped",
        "the run was ended before the step's turn",
        "Somebody ended the run, its time was up, or another step failed and it was to stop at the first failure. Nothing was sent for this step.",
        "Apply again.",
    ),
    entry(
        Code::RunLeft,
        "run-left",
        "the run was left while this was under way",
        "Somebody ended the program at once. What was sent goes on in the environment, and the journal has it as under way.",
        "Apply again: before anything else it finds out what became of this.",
    ),
    entry(
        Code::Superseded,
        "superseded",
        "a newer step took its place",
        "The step waited for its turn when a newer plan came for the same guest. Nothing was sent for it.",
        "Nothing needs to be done: look at the newer step.",
    ),
    entry(
        Code::RequestRepeated,
        "request-repeated",
        "the same request was carried out before",
        "The idempotency key stands for an operation that exists already, and a request acts once.",
        "Look at the first operation, which the evidence names; use a new key for a new request.",
    ),
    entry(
        Code::QueueFull,
        "queue-full",
        "more steps wait than are kept",
        "Every queue has a bound, and a plan that does not fit into it is not begun at all.",
        "Wait until what is under way has ended, then apply again; or narrow the plan with `--only`.",
    ),
    entry(
        Code::IntegrityViolation,
        "integrity-violation",
        "what is kept is not what was recorded",
        "The ledger binds every entry, and by its digest everything that an entry names. The bytes that are there now are others: they were changed, cut, replaced or put back from an older copy. Nothing is carried out on evidence like this.",
        "Keep the state directory as it is and copy it: it is evidence. `converger verify` says where the first wrong byte is; compare with an export or with the witness, and find out who wrote there.",
    ),
    entry(
        Code::EvidenceMissing,
        "evidence-missing",
        "what a decision rests on is not kept",
        "An entry names a plan, a reading or rules by their digest, and nothing is kept under it. It may have been removed with `converger ledger prune`, or it was lost.",
        "Look for it in an export or a copy of the state directory from before; without it the decision can be shown and not made again.",
    ),
    entry(
        Code::DeterminismBreach,
        "determinism-breach",
        "the same inputs give another decision",
        "A decision was made again out of what was recorded for it, by the same planner, and came out as another one. That must never be: either the record was forged as a whole, or the program decides by something that it does not record.",
        "Do not apply anything. Keep the state directory, and report it with the output of `converger reproduce`.",
    ),
    entry(
        Code::UnloggedExecution,
        "unlogged-execution",
        "something was carried out that the ledger does not know",
        "Every intent and every outcome of the journal commits together with its entry. Here the journal has an operation without entries, or entries of an operation that the journal does not have: one of the two was changed by other means than this program.",
        "Keep the state directory as it is. `converger verify --db` names the operations; compare the task log of the cluster (`/cluster/tasks`) with both.",
    ),
];

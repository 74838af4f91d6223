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
pub static TABLE: [Entry; 16] = [
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
        "Name the cluster's own authority with `ca` (/etc/pve/pve-root-ca.pem on a node), or pin the certificate with `fingerprints`.",
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
        "Use a name in `url` that the certificate is for, or pin the certificate with `fingerprints`.",
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
];

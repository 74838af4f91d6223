//! Tickets of people who log in with a password, and the token against forged requests beside them.
//!
//! What never enters here: real cryptography. A ticket is signed with a hash over the world's seed:
//! enough for a lab, worth nothing elsewhere.

/// Tickets and their companions live for two hours.
const LIFE_S: u64 = 2 * 60 * 60;

/// Makes and checks tickets of one world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tickets {
    seed: u64,
}

impl Tickets {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }

    pub(crate) fn make(&self, user: &str, now_s: u64) -> String {
        self.signed(&format!("PVE:{user}:{now_s:08X}"), "::")
    }

    /// The user of a ticket that is genuine and not too old.
    pub(crate) fn user(&self, ticket: &str, now_s: u64) -> Option<String> {
        let (body, _) = ticket.split_once("::")?;
        let (user, time) = body.strip_prefix("PVE:")?.rsplit_once(':')?;
        let genuine = self.signed(body, "::") == ticket && fresh(time, now_s);
        genuine.then(|| user.to_owned())
    }

    /// The companion of a ticket; every request that changes something carries it.
    pub(crate) fn companion(&self, user: &str, now_s: u64) -> String {
        self.companion_at(user, &format!("{now_s:08X}"))
    }

    pub(crate) fn companion_is_genuine(&self, user: &str, text: &str, now_s: u64) -> bool {
        let time = text.split(':').next().unwrap_or_default();
        self.companion_at(user, time) == text && fresh(time, now_s)
    }

    fn companion_at(&self, user: &str, time: &str) -> String {
        format!("{time}:{}", self.hash(&format!("{time}:{user}")))
    }

    fn signed(&self, body: &str, joint: &str) -> String {
        format!("{body}{joint}{}", self.hash(body))
    }

    fn hash(&self, text: &str) -> String {
        crate::digest::sha1(&format!("{}:{text}", self.seed))
    }
}

fn fresh(time: &str, now_s: u64) -> bool {
    u64::from_str_radix(time, 16).is_ok_and(|made| made <= now_s + 300 && now_s < made + LIFE_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_or_old_ticket_is_nobody() {
        let tickets = Tickets::new(1);
        let ticket = tickets.make("ops@pve", 1_000);
        assert_eq!(tickets.user(&ticket, 1_000).as_deref(), Some("ops@pve"));
        assert_eq!(tickets.user(&ticket.replace("ops", "root"), 1_000), None);
        assert_eq!(tickets.user(&ticket, 1_000 + LIFE_S), None);
        assert_eq!(Tickets::new(2).user(&ticket, 1_000), None);
    }

    #[test]
    fn a_companion_belongs_to_its_user() {
        let tickets = Tickets::new(1);
        let companion = tickets.companion("ops@pve", 1_000);
        assert!(tickets.companion_is_genuine("ops@pve", &companion, 1_000));
        assert!(!tickets.companion_is_genuine("root@pam", &companion, 1_000));
        assert!(!tickets.companion_is_genuine("ops@pve", "nonsense", 1_000));
    }
}

//! Login tickets and their CSRF tokens.
//!
//! Not real cryptography: a ticket is signed with a hash over the world's seed. That is enough for
//! a lab and worthless elsewhere.

/// Lifetime of tickets and CSRF tokens: two hours.
const TICKET_LIFE_S: u64 = 2 * 60 * 60;

/// Creates and verifies the tickets of one world.
#[derive(Clone, Debug, Default)]
pub(crate) struct TicketSigner {
    seed: u64,
}

impl TicketSigner {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }

    pub(crate) fn make_ticket(&self, user: &str, now_s: u64) -> String {
        self.sign(&format!("PVE:{user}:{now_s:08X}"), "::")
    }

    /// The user of a ticket that is genuine and has not expired.
    pub(crate) fn verify_ticket(&self, ticket: &str, now_s: u64) -> Option<String> {
        let (body, _) = ticket.split_once("::")?;
        let (user, time) = body.strip_prefix("PVE:")?.rsplit_once(':')?;
        let genuine = self.sign(body, "::") == ticket && is_fresh(time, now_s);
        genuine.then(|| user.to_owned())
    }

    /// The CSRF token of a ticket, which every modifying request must carry.
    pub(crate) fn make_csrf_token(&self, user: &str, now_s: u64) -> String {
        self.csrf_token_at(user, &format!("{now_s:08X}"))
    }

    pub(crate) fn is_csrf_token_valid(&self, user: &str, text: &str, now_s: u64) -> bool {
        let time = text.split(':').next().unwrap_or_default();
        self.csrf_token_at(user, time) == text && is_fresh(time, now_s)
    }

    fn csrf_token_at(&self, user: &str, time: &str) -> String {
        format!("{time}:{}", self.hash_text(&format!("{time}:{user}")))
    }

    fn sign(&self, body: &str, joint: &str) -> String {
        format!("{body}{joint}{}", self.hash_text(body))
    }

    fn hash_text(&self, text: &str) -> String {
        crate::digest::sha1_hex(&format!("{}:{text}", self.seed))
    }
}

fn is_fresh(time: &str, now_s: u64) -> bool {
    u64::from_str_radix(time, 16).is_ok_and(|created_s| created_s <= now_s + 300 && now_s < created_s + TICKET_LIFE_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_and_expired_tickets_are_rejected() {
        let tickets = TicketSigner::new(1);
        let ticket = tickets.make_ticket("ops@pve", 1_000);
        assert_eq!(tickets.verify_ticket(&ticket, 1_000).as_deref(), Some("ops@pve"));
        assert_eq!(tickets.verify_ticket(&ticket.replace("ops", "root"), 1_000), None);
        assert_eq!(tickets.verify_ticket(&ticket, 1_000 + TICKET_LIFE_S), None);
        assert_eq!(TicketSigner::new(2).verify_ticket(&ticket, 1_000), None);
    }

    #[test]
    fn csrf_token_is_valid_for_its_user_only() {
        let tickets = TicketSigner::new(1);
        let companion = tickets.make_csrf_token("ops@pve", 1_000);
        assert!(tickets.is_csrf_token_valid("ops@pve", &companion, 1_000));
        assert!(!tickets.is_csrf_token_valid("root@pam", &companion, 1_000));
        assert!(!tickets.is_csrf_token_valid("ops@pve", "nonsense", 1_000));
    }
}
